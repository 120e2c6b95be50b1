//! Commands of `vmio pmfs` on media that nobody mounts: no FUSE, no rights.

use std::fs::File;
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::common::{TestResult, refused, succeeded, vmio};
use crate::pmfs::made;

#[test]
fn dump_shows_sound_and_damaged_media() -> TestResult {
    let dir = tempfile::tempdir()?;
    let image = made(dir.path())?;
    let dump = |arguments: &[&str]| succeeded(vmio().args(["pmfs", "dump"]).arg(&image).args(arguments));
    let object = |arguments: &[&str]| -> Result<Value, Box<dyn std::error::Error>> {
        Ok(serde_json::from_str(&dump(&[arguments, &["--json"]].concat())?)?)
    };
    let whole = object(&[])?;
    assert_eq!(whole["superblocks"][0]["uuid"], whole["superblocks"][1]["uuid"]);
    assert_eq!(whole["superblocks"][1]["at"], (64 << 20) - 4096);
    let of_runs = whole["free"]["runs_by_length"].as_array().ok_or("no runs")?.iter();
    let free: u64 = of_runs.filter_map(|length| length["blocks"].as_u64()).sum();
    let stat = succeeded(vmio().args(["pmfs", "stat", "--json"]).arg(&image))?;
    assert_eq!(serde_json::from_str::<Value>(&stat)?["free_blocks"], free);
    let root = object(&["/"])?;
    assert_eq!((&root["inode"], &root["kind"], &root["links"]), (&1.into(), &"folder".into(), &2.into()));
    assert_eq!(object(&["--inode", "1"])?, root);
    assert!(dump(&["/"])?.contains("parent      1\n"));
    assert!(dump(&["--journals"])?.contains("nothing has begun"));
    let mut command = vmio();
    refused(command.args(["pmfs", "dump"]).arg(&image).arg("/folder/x"), "there is no \"folder\" in directory 1")?;
    let mut command = vmio();
    refused(command.args(["pmfs", "dump", "--inode", "99999999"]).arg(&image), "there can be no inode 99999999")?;
    let at = root["at"].as_u64().ok_or("no place")?;
    let file = File::options().write(true).open(&image)?;
    file.write_all_at(&[77], at + 32)?;
    file.write_all_at(&[77], 100)?;
    assert!(dump(&["--inode", "1"])?.contains(&format!("fault       at {at}: an inode at byte {at} is damaged")));
    assert!(dump(&[])?.contains("superblock  at 0: UNUSABLE: the superblock at byte 0 is damaged"));
    file.write_all_at(&[77], (64 << 20) - 4000)?;
    let output = vmio().args(["pmfs", "dump"]).arg(&image).output()?;
    assert_eq!(String::from_utf8(output.stdout)?.matches("UNUSABLE").count(), 2);
    assert!(!output.status.success());
    Ok(())
}
