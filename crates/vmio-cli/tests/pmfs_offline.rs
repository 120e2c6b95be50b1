//! Commands of `vmio pmfs` on media that nobody mounts: no FUSE, no rights.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

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

/// Runs fsck, whose status and output are expected.
fn fsck(image: &Path, options: &[&str], status: i32, text: &str) -> TestResult {
    let output = vmio().args(["pmfs", "fsck"]).args(options).arg(image).output()?;
    let said = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(said.contains(text), "{said}");
    Ok(())
}

#[test]
fn fsck_repairs_and_its_status_says_what_is_left() -> TestResult {
    let dir = tempfile::tempdir()?;
    let image = made(dir.path())?;
    fsck(&image, &[], 0, ": sound, 0 files, 1 folders")?;
    fsck(&image, &["--repair"], 0, ": sound, ")?;
    let file = File::options().read(true).write(true).open(&image)?;
    file.write_all_at(&[77], 100)?;
    fsck(&image, &[], 4, "has 1 fault")?;
    fsck(&image, &["--repair"], 1, "repaired  at byte 0: the superblock at byte 0 is damaged")?;
    fsck(&image, &[], 0, ": sound, ")?;
    file.write_all_at(&[77], 100)?;
    // The root's inode.
    file.write_all_at(&[9], (1 + 16 + 256 + 8) * 4096 + 256 + 100)?;
    fsck(&image, &["--repair", "--json"], 4, "\"repaired\":[{\"at\":0,")?;
    fsck(&image, &["--repair"], 4, "there is no root directory")?;
    file.set_len(4 << 20)?;
    fsck(&image, &["--repair"], 8, "it was cut off")?;
    fsck(&dir.path().join("absent"), &[], 8, "cannot check")
}
