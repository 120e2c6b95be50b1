//! `vmio doctor`: explains every feature of the kernel that vmio can do without, whether it is there or not.

use crate::common::{TestResult, refused, succeeded, vmio};
use serde_json::Value;

const FEATURES: [(&str, &str); 7] = [
    ("batched-unmap", "6.13"),
    ("move-pages", "6.8"),
    ("wp-async", "6.7"),
    ("pagemap-scan", "6.7"),
    ("shmem-wp", "5.19"),
    ("unmap-locked", "5.18"),
    ("io-uring", "5.11"),
];

#[test]
fn every_feature_has_a_line_on_what_it_is_for_and_what_is_used_in_its_place() -> TestResult {
    let text = succeeded(vmio().args(["doctor", "--without", "batched-unmap,io-uring"]))?;
    for (name, since) in FEATURES {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        assert!(line.contains(&format!("Linux {since}:")), "{name}: {text}");
    }
    assert_eq!(text.matches("without it: ").count(), FEATURES.len(), "{text}");
    assert_eq!(text.matches("-> declined").count(), 2, "{text}");
    assert!(text.contains("Will be used: ") && text.contains("eviction of whole spans"), "{text}");
    Ok(())
}

#[test]
fn the_json_says_the_same() -> TestResult {
    let with: Value = serde_json::from_str(&succeeded(vmio().args(["doctor", "--json"]))?)?;
    let without = succeeded(vmio().args(["doctor", "--json", "--without", "wp-async"]))?;
    let without: Value = serde_json::from_str(&without)?;
    for (index, (name, since)) in FEATURES.into_iter().enumerate() {
        let (with, without) = (&with["kernel_features"][index], &without["kernel_features"][index]);
        assert_eq!((&without["name"], &without["since"]), (&name.into(), &since.into()));
        for explanation in ["used_for", "in_its_place"] {
            assert!(without[explanation].as_str().is_some_and(|text| !text.is_empty()), "{without}");
        }
        assert_eq!(without["ok"], if name == "wp-async" { false.into() } else { with["ok"].clone() }, "{without}");
        assert_eq!(without["reason"].is_null(), without["ok"] == true, "{without}");
    }
    Ok(())
}

#[test]
fn an_unknown_feature_is_refused_with_the_names_of_all() -> TestResult {
    for command in [&["doctor"][..], &["bench", "map"]] {
        refused(
            vmio().args(command).args(["--without", "io_uring"]),
            "batched-unmap, move-pages, wp-async, pagemap-scan",
        )?;
    }
    Ok(())
}
