//! Keys and values of any bytes, in the input and output of `vmio kv`.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{TestResult, refused, succeeded, vmio};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn kv(command: &str, store: &Path) -> Command {
    let mut run = vmio();
    run.args(["kv", command]).arg(store);
    run
}

fn created(dir: &Path, name: &str) -> Outcome<PathBuf> {
    let store = dir.join(name);
    succeeded(kv("create", &store).args(["--size", "64M"]))?;
    Ok(store)
}

fn load(store: &Path, arguments: &[&str], input: &[u8]) -> Outcome<Output> {
    let mut child = kv("load", store)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child.stdin.take().ok_or("no input")?.write_all(input)?;
    Ok(child.wait_with_output()?)
}

fn loaded(store: &Path, arguments: &[&str], input: &[u8]) -> Outcome<(String, String)> {
    let output = load(store, arguments, input)?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok((String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
}

#[test]
fn a_key_of_any_bytes_is_named_as_it_is_printed() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path(), "store.kv")?;
    loaded(&store, &[], b"\\xff\\xfe\tbin\n\\x00\tzero\na\\\\b\tbackslash\n")?;
    let lines = "\\x00\tzero\na\\\\b\tbackslash\n\\xff\\xfe\tbin\n";
    assert_eq!(succeeded(&mut kv("scan", &store))?, lines);
    for line in lines.lines() {
        let (key, value) = line.split_once('\t').ok_or("no tab")?;
        assert_eq!(succeeded(kv("get", &store).arg(key))?, value);
        assert_eq!(succeeded(kv("scan", &store).args(["--prefix", key]))?, format!("{line}\n"));
        let from = succeeded(kv("scan", &store).args(["--from", key, "--limit", "1"]))?;
        assert_eq!(from, format!("{line}\n"));
        assert!(!succeeded(kv("scan", &store).args(["--to", key]))?.contains(line));
    }
    // As bytes on the command line, too.
    assert_eq!(succeeded(kv("get", &store).arg(OsStr::from_bytes(b"\xff\xfe")))?, "bin");
    assert_eq!(succeeded(kv("get", &store).args(["\\xff\\xfe", "\\x00"]))?, "\\xff\\xfe\tbin\n\\x00\tzero\n");
    succeeded(kv("put", &store).args(["\\xff\\xfe", "a\\tvalue"]))?;
    assert_eq!(succeeded(kv("get", &store).arg("\\xff\\xfe"))?, "a\\tvalue", "a value is taken as it is");
    succeeded(kv("del", &store).arg("\\xff\\xfe"))?;
    refused(kv("get", &store).arg("\\xff\\xfe"), "\"\\xff\\xfe\" has no value")?;
    for wrong in ["a\\", "\\q", "\\x1"] {
        for command in ["get", "del"] {
            refused(kv(command, &store).arg(wrong), "the key")?;
        }
        refused(kv("put", &store).args([wrong, "value"]), "the key")?;
        refused(kv("scan", &store).args(["--from", wrong]), "the key")?;
    }
    assert_eq!(succeeded(kv("scan", &store).arg("--keys-only"))?, "\\x00\na\\\\b\n", "nothing was done");
    Ok(())
}

#[test]
fn keys_and_values_go_as_digits_and_letters() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path(), "store.kv")?;
    succeeded(kv("put", &store).args(["--hex", "fffe", "00010203"]))?;
    assert_eq!(kv("get", &store).args(["--base64", "//4="]).output()?.stdout, [0, 1, 2, 3]);
    assert_eq!(succeeded(kv("scan", &store).args(["--hex", "--prefix", "ff"]))?, "fffe\t00010203\n");
    assert_eq!(succeeded(kv("scan", &store).args(["--base64"]))?, "//4=\tAAECAw==\n");
    refused(kv("scan", &store).arg("--json"), "--hex or --base64")?;
    let object = "{\"key\":\"fffe\",\"value\":\"00010203\"}\n";
    assert_eq!(succeeded(kv("scan", &store).args(["--json", "--hex"]))?, object);
    refused(kv("scan", &store).args(["--format", "binary", "--hex"]), "the bytes themselves")?;
    refused(kv("put", &store).args(["--hex", "ff", "0"]), "the value")?;
    for (number, form) in
        [&["--hex"][..], &["--base64"], &["--json", "--hex"], &["--format", "csv", "--base64"]].iter().enumerate()
    {
        let copy = created(dir.path(), &format!("copy {number}"))?;
        let lines = succeeded(kv("scan", &store).args(*form))?;
        loaded(&copy, form, lines.as_bytes())?;
        assert_eq!(succeeded(&mut kv("scan", &copy))?, "\\xff\\xfe\t\\x00\\x01\\x02\\x03\n", "{form:?}");
    }
    succeeded(kv("del", &store).args(["--hex", "FFFE"]))?;
    assert_eq!(succeeded(&mut kv("scan", &store))?, "");
    Ok(())
}

#[test]
fn a_load_says_what_it_kept_and_names_one_line() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path(), "store.kv")?;
    let cases: [(&[&str], &[u8], &str); 5] = [
        (&[], b"a\t1\nb\t2\nno tab\nd\t4\n", "vmio: 2 rows were kept, and no more: line 3: there is no tab"),
        (
            &["--json"],
            b"{\"key\":\"a\",\"value\":\"1\"}\nnonsense\n",
            "1 row was kept, and no more: line 2: expected ident, at column 2\n",
        ),
        (&["--format", "csv"], b"a,\"1\n\"\nb,2,3\n", "1 row was kept, and no more: line 3: it has 3 fields"),
        (&[], b"a\t1\n\t2\n", "1 row was kept, and no more: line 2: a key cannot have 0 bytes"),
        (
            &["--format", "binary"],
            b"\x01\0\0\0\x01\0\0\0a1\x01\0",
            "1 row was kept, and no more: pair 2: the input ends",
        ),
    ];
    for (arguments, input, said) in cases {
        let output = load(&store, arguments, input)?;
        let error = String::from_utf8(output.stderr)?;
        assert!(!output.status.success() && output.stdout.is_empty() && error.contains(said), "{error}");
        let numbered = |rest: &&str| rest.starts_with(|first: char| first.is_ascii_digit());
        assert!(error.split("line ").skip(1).filter(numbered).count() <= 1, "{error}");
        assert_eq!(succeeded(kv("scan", &store).args(["--keys-only", "--limit", "1"]))?, "a\n");
    }
    assert_eq!(loaded(&store, &[], b"a\t1\nb\t2")?.0, "2 keys\n");
    // Text that is not UTF-8 counts as bytes.
    loaded(&store, &[], b"\xff\t\xfe\n")?;
    assert_eq!(succeeded(kv("scan", &store).args(["--from", "\\xff"]))?, "\\xff\t\\xfe\n");
    Ok(())
}

#[test]
fn a_carriage_return_at_a_lines_end_is_kept_unless_lines_end_so() -> TestResult {
    let dir = tempfile::tempdir()?;
    let store = created(dir.path(), "store.kv")?;
    let input = b"a\t1\nb\t2\r\nc\t3\r\n";
    let (printed, warned) = loaded(&store, &[], input)?;
    assert_eq!(printed, "3 keys\n");
    assert!(warned.contains("2 lines end with a carriage return, line 2 first"), "{warned}");
    assert_eq!(succeeded(&mut kv("scan", &store))?, "a\t1\nb\t2\\r\nc\t3\\r\n");
    assert_eq!(loaded(&store, &["--crlf"], input)?, ("3 keys\n".into(), String::new()));
    assert_eq!(succeeded(&mut kv("scan", &store))?, "a\t1\nb\t2\nc\t3\n");
    Ok(())
}

/// Runs the examples of the help in a shell.
#[test]
fn a_scan_is_loaded_as_the_help_says() -> TestResult {
    let help = succeeded(vmio().args(["kv", "scan", "--help"]))?;
    let example = "vmio kv create copy.kv && vmio kv scan words.kv | vmio kv load copy.kv";
    assert!(help.contains(example), "{help}");
    let dir = tempfile::tempdir()?;
    let store = created(dir.path(), "words.kv")?;
    loaded(&store, &[], b"apple\tred\r\n\\xff\\x00\t\\\\ \\r\n")?;
    let path = Path::new(env!("CARGO_BIN_EXE_vmio")).parent().ok_or("no folder")?;
    let path = format!("{}:{}", path.display(), std::env::var("PATH")?);
    succeeded(Command::new("sh").args(["-ec", example]).env("PATH", path).current_dir(dir.path()))?;
    let copy = succeeded(&mut kv("scan", &dir.path().join("copy.kv")))?;
    assert_eq!(copy, "apple\tred\\r\n\\xff\\x00\t\\\\ \\r\n");
    assert_eq!(copy, succeeded(&mut kv("scan", &store))?);
    Ok(())
}
