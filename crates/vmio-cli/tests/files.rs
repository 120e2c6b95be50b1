//! `vmio cat`, `cp` and `sum` on files of odd lengths, compared with the standard library.

use std::fs;

use crate::common::{TestResult, patterned, refused, succeeded, vmio};

const LENGTHS: [usize; 7] = [0, 1, 4095, 4096, 4097, (1 << 20) + 3, (5 << 20) + 511];

#[test]
fn cat_gives_the_bytes_of_the_file() -> TestResult {
    let dir = tempfile::tempdir()?;
    for len in LENGTHS {
        let path = dir.path().join("file");
        fs::write(&path, patterned(len))?;
        let output = vmio().arg("cat").args(["--cache", "8M"]).arg(&path).output()?;
        assert!(output.status.success(), "{len}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == patterned(len), "cat of {len} bytes differs");
    }
    Ok(())
}

#[test]
fn cp_gives_an_equal_file_and_leaves_nothing_else() -> TestResult {
    for len in LENGTHS {
        let dir = tempfile::tempdir()?;
        let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
        fs::write(&source, patterned(len))?;
        fs::write(&copy, "what was there before")?;
        let output = vmio().args(["cp", "--cache", "8M", "--json"]).args([&source, &copy]).output()?;
        assert!(output.status.success(), "{len}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(fs::read(&copy)? == patterned(len), "the copy of {len} bytes differs");
        assert!(fs::read(&source)? == patterned(len));
        assert_eq!(fs::read_dir(dir.path())?.count(), 2);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(report["bytes"], len);
    }
    Ok(())
}

#[test]
fn cp_into_a_folder_keeps_name_and_permissions() -> TestResult {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir()?;
    let (source, folder) = (dir.path().join("source"), dir.path().join("folder"));
    fs::write(&source, patterned(5000))?;
    // The copy belongs to another user: a program must not get that user's rights when it runs.
    fs::set_permissions(&source, fs::Permissions::from_mode(0o6640))?;
    fs::create_dir(&folder)?;
    succeeded(vmio().arg("cp").args([&source, &folder]))?;
    let copy = folder.join("source");
    assert!(fs::read(&copy)? == patterned(5000));
    assert_eq!(fs::metadata(&copy)?.permissions().mode() & 0o7777, 0o640);
    Ok(())
}

#[test]
fn sum_is_the_crc32_of_the_content() -> TestResult {
    let dir = tempfile::tempdir()?;
    for len in LENGTHS {
        let path = dir.path().join("file");
        fs::write(&path, patterned(len))?;
        let output = vmio().args(["sum", "--json", "--cache", "8M"]).arg(&path).output()?;
        assert!(output.status.success(), "{len}: {}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(report["sum"], format!("{:08x}", crc32fast::hash(&patterned(len))));
        assert_eq!(report["algorithm"], "crc32");
        assert_eq!(report["bytes"], len);
    }
    Ok(())
}

#[test]
fn a_failed_copy_leaves_nothing_under_the_final_name() -> TestResult {
    let dir = tempfile::tempdir()?;
    let copy = dir.path().join("copy");
    refused(vmio().arg("cp").arg(dir.path().join("absent")).arg(&copy), "absent")?;
    assert_eq!(fs::read_dir(dir.path())?.count(), 0);

    fs::write(&copy, "content")?;
    refused(vmio().arg("cp").args([&copy, &copy]), "same file")?;
    assert_eq!(fs::read_to_string(&copy)?, "content");
    Ok(())
}

#[test]
fn what_cannot_be_mapped_is_refused() -> TestResult {
    let dir = tempfile::tempdir()?;
    refused(vmio().arg("cat").arg(dir.path()), "neither a regular file nor a device")?;
    refused(vmio().args(["sum", "/dev/null"]), "not the character device of an NVMe namespace")?;
    refused(vmio().arg("sum").arg(dir.path().join("absent")), "No such file")?;
    refused(vmio().args(["sum", "--cache", "many", "x"]), "512M")?;
    Ok(())
}

#[test]
fn doctor_reports_as_json() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("file");
    fs::write(&path, patterned(5000))?;
    let output = vmio().args(["doctor", "--json", "--file"]).arg(&path).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert!(report["kernel"].is_string() && report["usable"].is_boolean());
    assert_eq!(report["file"]["len_bytes"], 5000);
    assert!(report["file"]["dax"].is_boolean() && report["devices"]["nvme_namespaces"].is_array());
    assert!(
        report["devices"]["persistent_memory"]
            .as_str()
            .is_some_and(|text| text.contains("clflush") || text.contains("clwb"))
    );
    assert_eq!(report["engine"], if report["checks"][0]["ok"] == true { "sigbus" } else { "managed" });
    succeeded(vmio().args(["doctor", "--file"]).arg(&path))?;
    Ok(())
}
