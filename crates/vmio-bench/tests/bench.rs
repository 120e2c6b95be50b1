//! `vmio-bench` on tiny files: every engine and store verifies what it reads, and each side has its figures.

use std::fs;

use crate::common::{TestResult, bench, beside, leave_out, refused, succeeded, text, vmio_bench};
use vmio::probe::{KernelFeature, probe};
use vmio_pmfs::{Access, Fs, Geometry, MappedFile, Medium};

#[test]
fn fetch_runs_every_way_that_this_user_may() -> TestResult {
    let features = probe().kernel;
    let has_io_uring =
        features.iter().any(|(feature, is_there)| *feature == KernelFeature::IoUring && is_there.is_yes());
    if !has_io_uring {
        test_depth::skipped("raw reads: no io_uring");
    }
    let dir = tempfile::tempdir()?;
    let runs = bench(&[
        "fetch",
        "--dir",
        text(dir.path()),
        "--size",
        "32M",
        "--cache",
        "16M",
        "--secs",
        "1",
        "--warm-up",
        "0.1",
        "--threads",
        "2",
        "--ways",
        if has_io_uring { "vmio-fetch,vmio-ensure,vmio,raw-reads" } else { "vmio-fetch,vmio-ensure,vmio" },
    ])?;
    let ways: Vec<_> = runs.iter().map(|run| (run["way"].as_str(), run["in_flight"].as_u64())).collect();
    let expected = [("vmio-fetch", 64), ("vmio-ensure", 1), ("vmio", 1), ("raw-reads", 64)];
    assert_eq!(ways, expected.map(|(way, in_flight)| (Some(way), Some(in_flight)))[..if has_io_uring { 4 } else { 3 }]);
    for run in &runs {
        assert_eq!(run["verify_errors"], 0, "{run}");
        assert!(run["ops_per_s"].as_f64().is_some_and(|ops| ops > 0.0), "{run}");
        assert!(run["device_pages_per_s"].as_f64().is_some_and(|pages| pages > 0.0), "{run}");
    }
    // What was fetched was there when it was loaded, but for what had to go again at once.
    let count = |key: &str| runs[0][key].as_u64().unwrap_or_default();
    assert!(!has_io_uring || count("fetched_pages") > 3 * count("load_misses"), "{}", runs[0]);
    Ok(())
}

#[test]
fn ageing_measures_the_free_space_at_each_level() -> TestResult {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    fs::File::create(&image)?.set_len(96 << 20)?;
    {
        let medium: std::sync::Arc<dyn Medium> = std::sync::Arc::new(MappedFile::open(&image, Access::Write)?);
        Fs::make(&medium, Geometry::of(medium.len(), 1), false, (0, 0))?;
    }
    let levels = bench(&["age", "--image", text(&image), "--utilisation", "30,60", "--churn", "1", "--gather"])?;
    assert_eq!(levels.len(), 2);
    for (level, percent) in levels.iter().zip([30, 60]) {
        assert_eq!(level["utilisation_percent"], percent);
        let number = |value: &serde_json::Value| value.as_u64().unwrap_or_default();
        let (space, bytes) = (&level["free_space"], number(&level["bytes"]));
        let used = 100 * (bytes - number(&space["free_bytes"])) / bytes;
        // The largest file has a sixth of the space.
        assert!((percent - 17..percent + 17).contains(&used), "{level}");
        let holes: u64 = space["holes_bytes"].as_array().into_iter().flatten().map(number).sum();
        assert_eq!(number(&space["aligned_bytes"]) + holes, number(&space["free_bytes"]), "{level}");
        assert!(number(&level["written_bytes"]) > bytes, "{level}");
    }
    assert!(vmio_pmfs::check(std::sync::Arc::new(MappedFile::open(&image, Access::Read)?))?.is_sound());
    refused(vmio_bench().args(["age", "--image", text(&image)]), "there is a \"aged\" in directory 1 already")?;
    refused(vmio_bench().arg("age"), "--folder")
}

#[test]
fn files_has_a_figure_for_each_work_and_number_of_threads() -> TestResult {
    let dir = tempfile::tempdir()?;
    let few = ["--secs", "0.05", "--files", "100", "--count", "20", "--rounds", "1", "--threads", "1,2"];
    let which = ["files", "--folder", text(dir.path()), "--profiles", "varmail", "--calls", "unlink"];
    let results = bench(&[&which[..], &few].concat())?;
    let found: Vec<_> = results.iter().map(|result| (result["work"].as_str(), result["threads"].as_u64())).collect();
    let expected = [("varmail", 1), ("varmail", 2), ("unlink", 1), ("unlink", 2)];
    assert_eq!(found, expected.map(|(work, threads)| (Some(work), Some(threads))));
    assert!(results.iter().all(|result| result["ops_per_s"].as_f64().is_some_and(|ops| ops > 0.0)), "{results:?}");
    assert_eq!(fs::read_dir(dir.path())?.count(), 0, "the files are removed");
    Ok(())
}

#[test]
fn searches_find_the_same_wherever_their_heap_is() -> TestResult {
    if !beside("vmio").is_file() {
        return leave_out("vmio is not built beside vmio-bench: cargo build -p vmio-cli");
    }
    let dir = tempfile::tempdir()?;
    let options = ["--scale", "16", "--searches", "2", "--rounds", "1", "--sides", "memory,vmio,mmap"];
    let results = bench(&[&["heap", "--dir", text(dir.path())][..], &options].concat())?;
    // Linux mmap takes a memory cgroup.
    assert!((2..=3).contains(&results.len()), "{results:?}");
    for (result, side) in results.iter().zip(["memory", "vmio", "mmap"]) {
        assert_eq!(result["side"], side);
        assert_eq!(result["searches_s"].as_array().map(Vec::len), Some(2), "{result}");
        for key in ["build_s", "search_s", "cpu_s"] {
            assert!(result[key].as_f64().is_some_and(|seconds| seconds > 0.0), "{key} of {result}");
        }
    }
    assert_eq!(fs::read_dir(dir.path())?.count(), 0, "something is left in the folder");
    Ok(())
}

#[test]
fn the_scenarios_hold_on_a_small_scale() -> TestResult {
    let dir = tempfile::tempdir()?;
    let dir = text(dir.path());

    let hit = bench(&["hit", "--dir", dir, "--size", "8M", "--rounds", "3"])?;
    assert_eq!(hit[0]["misses"], 0, "{hit:?}");

    let priority = bench(&["priority", "--dir", dir, "--range", "4M", "--stream", "64M", "--cache", "16M"])?;
    assert_eq!(priority[0]["resident_pages"], 1024, "{priority:?}");
    assert_eq!(priority[0]["misses"], 0, "{priority:?}");
    assert_eq!(priority[0]["verify_errors"], 0, "{priority:?}");

    let fresh = bench(&["fresh", "--dir", dir, "--size", "64M", "--cache", "16M"])?;
    assert_eq!(fresh[0]["advised"], true);
    assert_eq!(fresh[0]["read_bytes"], 0, "{fresh:?}");
    assert_eq!(fresh[0]["cache_read_bytes"], 0, "{fresh:?}");
    assert!(fresh.iter().all(|result| result["verify_errors"] == 0), "{fresh:?}");

    let sync = bench(&["sync", "--dir", dir, "--size", "16M", "--cache", "32M", "--rounds", "2"])?;
    assert!(sync[0]["stores"].as_u64().is_some_and(|stores| stores > 0), "{sync:?}");
    assert!(sync.iter().all(|result| result["verify_errors"] == 0), "{sync:?}");

    let units = bench(&["units", "--dir", dir, "--size", "128M", "--cache", "64M", "--loads", "500", "--rounds", "1"])?;
    assert_eq!(units.len(), 12, "{units:?}");
    assert!(units.iter().all(|result| result["verify_errors"] == 0 && result["hit_misses"] == 0), "{units:?}");
    let dynamic = units.iter().filter(|result| result["units"] == "dynamic");
    for result in dynamic {
        let huge_pages = result["huge_pages"].as_u64().unwrap_or(0);
        assert_eq!(huge_pages > 0, result["work"] != "random", "{result:?}");
    }
    Ok(())
}

#[test]
fn every_store_holds_what_was_committed() -> TestResult {
    let dir = tempfile::tempdir()?;
    let small = ["--size", "2M", "--cache", "64M", "--journal", "2M", "--secs", "0.2", "--warm-up", "0.05"];
    let commit = |more: &[&str]| bench(&[&["commit", "--dir", text(dir.path())][..], &small[..], more].concat());

    let runs = commit(&["--pages", "1,16", "--threads", "2"])?;
    let measured: Vec<_> = runs.iter().map(|run| (run["store"].as_str(), run["pages"].as_u64())).collect();
    let stores = ["vmio", "mmap", "sqlite", "lmdb"];
    let expected = [1, 16, 16].iter().flat_map(|pages| stores.map(|store| (Some(store), Some(*pages))));
    assert_eq!(measured, expected.collect::<Vec<_>>());
    for run in &runs {
        assert_eq!(run["verify_errors"], 0, "{run}");
        assert_eq!(run["atomic"], run["store"] != "mmap", "{run}");
        assert!(run["commits"].as_u64().is_some_and(|commits| commits >= 1), "{run}");
    }
    let (commits, accesses) = runs.split_at(8);
    for run in commits {
        assert_eq!((&run["measure"], &run["threads"]), (&"commits".into(), &2.into()), "{run}");
        let count = |key: &str| run[key].as_u64().unwrap_or_default();
        assert_eq!(count("changed_bytes"), 128 * count("pages") * count("commits"), "{run}");
        // Where it is durable, its pages have been written.
        let device = &run["device_writes"];
        assert!(device.is_null() || device["bytes"].as_u64() >= Some(4096 * count("commits")), "{run}");
    }
    for run in accesses {
        assert_eq!((&run["measure"], &run["threads"]), (&"accesses".into(), &1.into()), "{run}");
        assert!(run["loads"]["accesses"].as_u64() > Some(1), "{run}");
        assert_eq!(run["stores"].is_object(), run["store"] == "vmio" || run["store"] == "mmap", "{run}");
    }
    assert_eq!(fs::read_dir(dir.path())?.count(), 0, "files are left");

    let table = succeeded(vmio_bench().args(["commit", "--dir", text(dir.path())]).args(small).args(["--pages", "4"]))?;
    assert!(table.contains("mmap + msync (not atomic)") && table.contains("lmdb, loads"), "{table}");
    let mut too_many = vmio_bench();
    too_many.args(["commit", "--size", "1M", "--pages", "256", "--threads", "2", "--dir", text(dir.path())]);
    refused(&mut too_many, "make --size larger")
}

#[test]
fn a_damaged_word_is_found() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("file");
    let mut map = vmio_bench();
    map.args([
        "map",
        "--cache",
        "8M",
        "--threads",
        "1",
        "--secs",
        "0.2",
        "--size",
        "16M",
        "--engines",
        "pread",
        "--file",
    ]);
    succeeded(map.arg(&path))?;
    let mut content = fs::read(&path)?;
    // Few enough for the sample that decides whether the file holds the content to pass them by.
    content[(8 << 20) + 4096..(8 << 20) + 9 * 4096].fill(0xff);
    fs::write(&path, content)?;
    let priority = ["priority", "--cache", "8M", "--range", "1M", "--stream", "15M", "--file"];
    refused(vmio_bench().args(priority).arg(&path), "not what they should be")
}

#[test]
fn bad_arguments_are_refused_with_advice() -> TestResult {
    for command in ["map", "fetch", "commit"] {
        refused(vmio_bench().args([command, "--secs", "nan"]), "from 0.01 to 86400")?;
    }
    refused(vmio_bench().args(["commit", "--warm-up=-1"]), "--warm-up")?;
    refused(vmio_bench().args(["priority", "--overwrite"]), "--file")?;
    refused(vmio_bench().args(["bench-child", "nonsense"]), "other bench commands")
}

#[test]
fn every_command_has_help_with_examples_of_its_own() -> TestResult {
    let commands =
        ["map", "hit", "priority", "fresh", "sync", "fetch", "commit", "units", "posix", "programs", "heap", "kv"];
    for arguments in commands.map(|command| vec![command, "--help"]).into_iter().chain([vec!["--help"]]) {
        let help = succeeded(vmio_bench().args(&arguments))?;
        assert!(help.contains("Examples:\n  vmio-bench "), "{arguments:?}: {help}");
        assert!(!help.contains("vmio bench"), "{arguments:?}: {help}");
    }
    Ok(())
}
