//! The example of a persistent hash map, killed at random moments: it is consistent whenever it is opened, and holds what was
//! committed.

#[allow(dead_code)]
#[path = "../examples/persistent_map.rs"]
mod example;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::support::child::{command, is_child};
use crate::support::{is_managed, watchdog};

const NAME: &str = "persistent_map::the_map_survives_kills";
const FOLDER: &str = "VMIO_TEST_DIR";
const CHECKS: &str = "VMIO_TEST_CHECKS";

#[test]
fn the_map_survives_kills() {
    if is_child(NAME) {
        let folder = std::env::var(FOLDER).unwrap();
        example::run(Path::new(&folder), std::env::var(CHECKS).is_ok()).unwrap();
        return;
    }
    if is_managed("an atomic mapping") {
        return;
    }
    let _watchdog = watchdog(NAME);
    let folder = tempfile::tempdir().unwrap();
    for kill in 0..5_u64 {
        let mut command = command(NAME);
        let mut child = command.env(FOLDER, folder.path()).stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let (mut committed, mut commits) = (0, 0);
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let Some((_, rounds)) = line.split_once("committed ") else { continue };
            committed = rounds.parse::<u64>().unwrap();
            commits += 1;
            if commits == 20 + 7 * kill {
                thread::sleep(Duration::from_micros(300 * kill));
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(commits >= 20, "it died by itself");
        let output = command.env(CHECKS, "1").stdout(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        let rounds = said.split_once(" after ").unwrap().1.split_once(" rounds").unwrap().0;
        let rounds: u64 = rounds.parse().unwrap();
        // The commit after the last that was acknowledged may be there, and is three rounds on.
        assert!(rounds == committed || rounds == committed + 3, "{rounds} rounds, {committed} committed");
    }
}
