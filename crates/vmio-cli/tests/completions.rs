//! `vmio completions`: scripts that the shells accept, and that have every command.

use std::fs;
use std::process::Command;

use crate::common::{TestResult, refused, subcommands, succeeded, vmio};

/// The words that bash would offer for the last of `words`.
fn offered_by_bash(script: &str, words: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
    let last = words.last().ok_or("no word to complete")?;
    let ask = format!(
        "source {script}; COMP_WORDS=({}); COMP_CWORD={}; _vmio vmio '{last}' ''; echo \" ${{COMPREPLY[*]}} \"",
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1
    );
    succeeded(Command::new("bash").args(["-c", &ask]))
}

#[test]
fn every_shell_knows_every_command() -> TestResult {
    let (top, bench) = (subcommands(&[])?, subcommands(&["bench"])?);
    assert!(top.iter().any(|name| name == "bench") && bench.iter().any(|name| name == "map"), "{top:?} {bench:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeded(vmio().args(["completions", shell]))?;
        for name in top.iter().chain(&bench) {
            assert!(script.contains(name), "{shell} does not know {name}");
        }
        assert!(!script.contains("Run one measurement"), "{shell} offers the command that the others start");
    }
    refused(vmio().args(["completions", "cmd"]), "possible values")
}

#[test]
fn bash_accepts_the_script_and_completes_with_it() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("vmio.bash");
    fs::write(&path, succeeded(vmio().args(["completions", "bash"]))?)?;
    succeeded(Command::new("bash").arg("-n").arg(&path))?;

    let script = path.to_str().ok_or("the temporary path is no text")?;
    let offered = offered_by_bash(script, &["vmio", "bench", ""])?;
    for name in subcommands(&["bench"])? {
        assert!(offered.contains(&format!(" {name} ")), "{name} is not among {offered}");
    }
    assert!(!offered.contains("child"), "{offered}");
    let offered = offered_by_bash(script, &["vmio", "bench", "map", "--qui"])?;
    assert_eq!(offered.trim(), "--quick");
    Ok(())
}
