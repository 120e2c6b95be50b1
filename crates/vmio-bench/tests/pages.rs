//! `vmio-bench render`: pages say what figures that are kept hold.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{TestResult, refused, succeeded, vmio_bench};
use serde_json::Value;

fn benchmarks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks")
}

/// The runs of a measurement that are kept.
fn kept(name: &str) -> Result<Vec<Value>, Box<dyn Error>> {
    let recording: Value = serde_json::from_slice(&fs::read(benchmarks().join(name))?)?;
    Ok(recording["runs"].as_array().ok_or("no runs")?.clone())
}

/// A folder with files of runs, and what a page says of them.
struct Pages {
    folder: tempfile::TempDir,
    files: Vec<PathBuf>,
}

impl Pages {
    fn new() -> Result<Self, Box<dyn Error>> {
        Ok(Self { folder: tempfile::tempdir()?, files: Vec::new() })
    }

    fn add(&mut self, name: &str, runs: &[Value]) -> TestResult {
        let path = self.folder.path().join(name);
        fs::write(&path, serde_json::to_string(runs)?)?;
        self.files.push(path);
        Ok(())
    }

    fn render(&self, page: &str) -> Result<String, Box<dyn Error>> {
        let out = self.folder.path().join("page.md");
        let commands = self.folder.path().join("commands.txt");
        fs::write(&commands, "vmio-bench hit --dir SOMEWHERE/else\n")?;
        let mut command = vmio_bench();
        command.args(["render", page, "--hide", "SOMEWHERE/else", "--out"]).arg(&out);
        if page != "kv" {
            command.arg("--commands").arg(commands);
        }
        succeeded(command.args(&self.files))?;
        Ok(fs::read_to_string(out)?)
    }
}

/// The row of a table that begins so, as cells.
fn row<'a>(page: &'a str, begin: &str) -> Vec<&'a str> {
    let row = page.lines().find(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("no {begin:?} in {page}"));
    row.trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn pages_ask_the_same_of_the_same_figure() -> TestResult {
    let read = |name| fs::read_to_string(benchmarks().join(name));
    let (ratios, map) = (read("README.md")?, read("map.md")?);
    let figures = [
        ("| random loads a second", "| uniform read, 2 threads: throughput"),
        ("| random stores a second", "| uniform write, 2 threads: throughput"),
        ("| p99 of a random load", "| uniform read, 2 threads: p99 "),
        ("| ns of a hit", "| hit path: throughput"),
        ("| p99.9 of a store during a sync", "| the same with `FrameHint::Mixed`: p99.9 × Linux msync"),
    ];
    for (of_ratios, of_map) in figures {
        let better: f64 = row(&ratios, of_ratios)[6].parse()?;
        let (sign, bound) = row(&map, of_map)[1].split_once(' ').ok_or("no sign")?;
        let bound: f64 = bound.parse()?;
        assert_eq!(better, if sign == "≤" { 1.0 / bound } else { bound }, "{of_ratios}, {of_map}");
    }
    Ok(())
}

#[test]
fn a_page_of_map_compares_engines_and_judges_them() -> TestResult {
    let mut pages = Pages::new()?;
    pages.add("zram_map_uniform_read.json", &kept("figures/random-loads.json")?)?;
    pages.add("zram_hit.json", &kept("figures/hit.json")?)?;
    let page = pages.render("map")?;
    let (of_vmio, of_mmap) = (row(&page, "| vmio | 2 |"), row(&page, "| mmap | 2 |"));
    let thousands = |row: &[&str]| row[2].replace(',', "").parse::<f64>();
    let ratio = thousands(&of_vmio)? / thousands(&of_mmap)?;
    assert!((of_vmio[3].parse::<f64>()? - ratio).abs() < 0.02, "{of_vmio:?} beside {of_mmap:?}");
    let verdict = row(&page, "| uniform read, 2 threads: throughput × mmap |");
    assert_eq!((verdict[1], verdict[2]), ("≥ 1.10", of_vmio[3]));
    assert_eq!(verdict[3] == "met", ratio >= 1.1, "{verdict:?}");
    assert_eq!(row(&page, "| uniform write, 1 thread: throughput × mmap |")[3], "not measured");
    assert!(page.contains("## Fast device (zram): `vmio-bench hit`") && page.contains("vmio-bench hit --dir DIR\n"));
    // A scenario of its own has a column for each of its figures, and none without one.
    let hits = page.split("`vmio-bench hit`").nth(1).expect("the section was found");
    let heads = row(hits, "| ");
    assert!(heads.contains(&"vmio ns") && heads.contains(&"anonymous ns"), "{heads:?}");
    assert!(!hits.lines().any(|line| line.starts_with("| ") && line.contains("None")), "{hits}");
    Ok(())
}

#[test]
fn pages_of_units_and_commits_have_a_row_a_run() -> TestResult {
    let mut pages = Pages::new()?;
    pages.add("zram.json", &kept("figures/units.json")?)?;
    let page = pages.render("units")?;
    assert_eq!(page.matches("\n| dynamic | ").count(), 3, "{page}");
    assert_eq!(page.matches(" × the best fixed choice | ≤ 1.10 | ").count(), 9, "{page}");

    let mut pages = Pages::new()?;
    let mut runs = kept("figures/commit.json")?;
    let vmio = runs.iter_mut().find(|run| run["store"] == "vmio").ok_or("no vmio")?;
    vmio["commits_per_s"] = 1234.5.into();
    let lmdb = runs.iter_mut().find(|run| run["store"] == "lmdb").ok_or("no LMDB")?;
    lmdb["commits_per_s"] = 2469.0.into();
    pages.add("zram_1.json", &runs)?;
    let page = pages.render("commit")?;
    assert_eq!((row(&page, "| vmio | 1,23")[1], row(&page, "| LMDB | 2,469 |")[2]), ("1,234", "2.00"));
    let verdict = row(&page, "| Fast device (ext4 on zram): commits of 16 pages a second, × LMDB |");
    assert_eq!(verdict[1..], ["≥ 1", "0.50", "**missed**"]);
    Ok(())
}

#[test]
fn a_page_of_kv_keeps_what_was_written_by_hand() -> TestResult {
    let mut pages = Pages::new()?;
    let mut runs = kept("figures/kv.json")?;
    let failure = serde_json::json!({ "engine": "redb", "scenario": null, "phase": "C", "failure": "redb was killed" });
    runs.push(failure);
    pages.add("zram_1000000x100.json", &runs)?;
    let command = pages.folder.path().join("zram_1000000x100.command");
    fs::write(command, "vmio-bench kv --dir SOMEWHERE/else\n")?;
    let by_hand = "## What the profile says\n\nMuch.\n";
    fs::write(pages.folder.path().join("page.md"), format!("# Old\n\n{by_hand}"))?;
    let page = pages.render("kv")?;
    assert!(page.ends_with(&format!("vmio-bench kv --dir DIR\n```\n\n{by_hand}")) && !page.contains("# Old"));
    assert!(page.contains("- zram_1000000x100: redb was killed\n"));
    let load = row(&page, "| L, × the best other (");
    assert_eq!(load[3] == "met", load[2].parse::<f64>()? >= 1.5, "{load:?}");
    assert!(page.contains("**Load: each record is put once**; "), "{page}");
    Ok(())
}

#[test]
fn a_page_of_kv_shows_keyspaces_by_their_earlier_name() -> TestResult {
    let mut pages = Pages::new()?;
    let mut runs = kept("figures/kv.json")?;
    runs.iter_mut().for_each(|run| run["scenario"] = "regions".into());
    pages.add("zram_scenarios.json", &runs)?;
    fs::write(pages.folder.path().join("zram_scenarios.command"), "vmio-bench kv --dir SOMEWHERE/else\n")?;
    assert!(pages.render("kv")?.contains("\n## 300 keyspaces: "));
    Ok(())
}

#[test]
fn a_busy_machine_is_beside_the_same_round_of_mmap() -> TestResult {
    let mut pages = Pages::new()?;
    let mut runs: Vec<_> = kept("figures/random-stores.json")?;
    runs.retain(|run| run["threads"] == 2);
    for (round, factor) in [(1, 1.0), (2, 3.0), (3, 2.0)] {
        for run in &mut runs {
            run["ops_per_s"] = (1000.0 * if run["engine"] == "vmio" { factor } else { 1.0 }).into();
        }
        pages.add(&format!("low.{round}.json"), &runs)?;
    }
    let out = pages.folder.path().join("page.md");
    let render = || {
        let mut command = vmio_bench();
        command.args(["render", "busy", "--out"]).arg(&out).arg(pages.folder.path());
        command
    };
    succeeded(&mut render())?;
    let page = fs::read_to_string(&out)?;
    assert_eq!(row(&page, "| stores | vmio |")[2..4], ["2,000", "2.00 (1.00 to 3.00)"]);
    runs[0]["verify_errors"] = 7.into();
    fs::write(&pages.files[0], serde_json::to_string(&runs)?)?;
    refused(&mut render(), "7 words were not what they should be")
}

/// The page that is there came of the figures that are there: rendered anew it says the same, but for the machine and the day.
#[test]
fn the_page_of_programs_says_what_its_figures_hold() -> TestResult {
    let folder = tempfile::tempdir()?;
    let figures = fs::read_to_string(benchmarks().join("programs.json"))?;
    let mut order: Vec<String> = Vec::new();
    for line in figures.lines().filter(|line| line.starts_with("    {\"device\": ")) {
        let line = line.trim().trim_end_matches(',');
        let run: Value = serde_json::from_str(line)?;
        let (device, name) = (run["device"].as_str().ok_or("no device")?, run["name"].as_str().ok_or("no name")?);
        let own = line.split_once(", ").ok_or("nothing but a device")?.1;
        let path = folder.path().join(device).join(format!("{name}.jsonl"));
        fs::create_dir_all(path.parent().ok_or("no folder")?)?;
        let before = fs::read_to_string(&path).unwrap_or_default();
        fs::write(&path, format!("{before}{{{own}\n"))?;
        if !order.iter().any(|known| known == name) {
            order.push(name.to_owned());
        }
    }
    let (page, again) = (folder.path().join("page.md"), folder.path().join("figures.json"));
    let mut command = vmio_bench();
    command.args(["render", "programs", "--order", &order.join(" "), "--out"]).arg(&page);
    succeeded(command.arg("--figures").arg(&again).arg(folder.path()))?;
    let without_machine = |text: String| {
        let of_machine = ["| CPU |", "| cores |", "| memory |", "| kernel |", "| date |"];
        let lines = text.lines().filter(|line| of_machine.iter().all(|begin| !line.starts_with(begin)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = without_machine(fs::read_to_string(benchmarks().join("programs.md"))?);
    assert_eq!(without_machine(fs::read_to_string(page)?), expected);
    let (again, figures): (Value, Value) =
        (serde_json::from_slice(&fs::read(again)?)?, serde_json::from_str(&figures)?);
    assert_eq!((&again["runs"], &again["commands"]), (&figures["runs"], &figures["commands"]));
    Ok(())
}
