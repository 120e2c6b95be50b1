//! The library's integration tests, and other programs, on another kernel in a guest.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde_json::Value;

use crate::guest::Guest;
use crate::kernel::{Kernel, Series};
use crate::lab::{numbers_in, workspace};
use crate::{Accelerator, Machine, module, programs};

/// Files of tests, or tests of them, that do not run unless a file is named, and why.
struct LeftOut {
    files: &'static [&'static str],
    /// All of them if empty.
    tests: &'static [&'static str],
    reason: &'static str,
}

const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        files: &[
            "commit",
            "commit_crash",
            "crash",
            "devices",
            "fault_injection",
            "fetch",
            "files",
            "growth_model",
            "journal",
            "journal_crash",
            "memfd_frames",
            "model",
            "persistent_map",
            "read_ahead",
            "reentry",
            "resize",
            "shared_addresses",
            "shared_addresses_model",
            "sparse",
            "sync",
            "telemetry",
            "tenants",
            "threads",
            "units",
        ],
        tests: &[],
        reason: "each takes half a minute or more under emulation",
    },
    LeftOut {
        files: &["end_of_file", "kernels", "managed", "traps"],
        tests: &[
            "a_refused_cut_loses_nothing",
            "a_store_that_races_with_eviction_is_not_lost",
            "a_write_in_flight_is_neither_overtaken_nor_read_round",
            "system_calls_write_to_pages_pinned_for_writing_while_syncs_run",
            "a_range_that_is_given_up_goes_at_once_without_batched_unmap",
            "without_batched_unmap_clean_spans_go_as_a_whole",
            "without_batched_unmap_dirty_spans_are_written_and_go_as_a_whole",
            "a_file_larger_than_the_cache_stays_within_the_budget",
            "a_range_of_high_rank_outlives_a_stream",
            "files_share_one_budget",
            "processes_share_a_file",
        ],
        reason: "take long under emulation",
    },
    LeftOut { files: &["dynamic", "stream"], tests: &[], reason: "the huge pages of scans come with Linux 6.8" },
    LeftOut {
        files: &["policies"],
        tests: &["a_scan_passes_through_the_small_queue_of_s3_fifo"],
        reason: "before Linux 6.13 the pages of a span go together, whatever their queue",
    },
];

/// Of the files of tests, those that the kernel module's engine has to pass: others are of what it refuses, or of backings that are no files.
const OF_THE_MODULE: &[&str] = &[
    "kernel_engine",
    "kernel_verify_before_map",
    "crash",
    "dax",
    "devices",
    "end_of_file",
    "ensure",
    "fetch",
    "files",
    "fork",
    "memory_limit",
    "model",
    "resize",
    "shared_addresses_model",
    "sharing",
];

/// The same of other packages.
const BEYOND_THE_LIBRARY: &[(&str, &str)] = &[("vmio-kv", "kernel_store"), ("vmio-cli", "run")];

/// Of a package, the program that has a module for each file of tests.
const INTEGRATION: &str = "integration";

/// Of the files of tests, those that guest mode's engine passes.
const OF_RING_0: &[&str] = &["end_of_file", "ring0", "ring0_exits", "ring0_waiting_calls", "traps"];

/// Of them, tests that do not run unless their file is named, and why.
const LEFT_OUT_OF_RING_0: &[(&str, &str)] =
    &[("a_refused_cut_loses_nothing", "takes half a minute or more under emulation")];

/// An engine that is never the library's own choice, or that needs a guest.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// The kernel module's
    Kernel,
    /// Guest mode's, with KVM nested in the guest
    Ring0,
}

/// Builds the tests, runs them in one guest, and says how each ended; 0 if all is well.
pub(crate) fn run(machine: Machine, engine: Option<Engine>, wanted: &[String]) -> Result<u8> {
    let built = build_tests()?;
    let doctor = command_of(&built)?;
    let files = files_of_tests(&built)?;
    let list = match wanted {
        [] => match engine {
            None => shortened(&files)?,
            Some(Engine::Kernel) => {
                let beyond = BEYOND_THE_LIBRARY.iter().map(|(_, file)| *file);
                named(&files, &OF_THE_MODULE.iter().copied().chain(beyond).collect::<Vec<_>>())?
            }
            Some(Engine::Ring0) => without(&files, OF_RING_0, LEFT_OUT_OF_RING_0)?,
        },
        _ => named(&files, wanted)?,
    };
    let machine = if engine == Some(Engine::Ring0) { machine.for_nested_guests() } else { machine };
    let guest = Guest::new(machine, None)?;
    fs::write(guest.out().join("tests"), list)?;
    let suite = fs::read_to_string(workspace().join("tests/vm/suite"))?;
    let name = match engine {
        None => "",
        Some(Engine::Kernel) => "kernel",
        Some(Engine::Ring0) => "ring0",
    };
    let mut script = format!("vmio={}\nengine={name}\n", shlex::try_quote(doctor)?);
    // The guest has none of the host's variables.
    let depth = std::env::var("VMIO_TEST_DEPTH").unwrap_or_default();
    script += &format!("export VMIO_TEST_DEPTH={}\n", shlex::try_quote(&depth)?);
    if engine == Some(Engine::Kernel) {
        let module = module::build(machine.kernel)?;
        let kernel = Kernel::of(machine.kernel)?.root;
        for (name, path) in [("module", &module), ("kernel", &kernel)] {
            script += &format!("{name}={}\n", shlex::try_quote(&path.to_string_lossy())?);
        }
    }
    let status = guest.run(&format!("{script}{suite}"))?;
    let doctor = fs::read_to_string(guest.out().join("doctor.json"))?;
    check_features(&doctor, machine.kernel)?;
    check_module(&doctor, engine == Some(Engine::Kernel))?;
    Ok(status)
}

/// Whether `vmio doctor` has found the module exactly where it is.
fn check_module(doctor: &str, is_there: bool) -> Result<()> {
    let doctor: Value = serde_json::from_str(doctor)?;
    let checks = doctor["checks"].as_array().context("vmio doctor has checked nothing")?;
    let found =
        checks.iter().find(|check| check["name"] == "kernel module").context("no check of the kernel module")?;
    ensure!(found["ok"] == is_there && doctor["kernel_module_interface"].is_u64() == is_there, "vmio doctor: {found}");
    Ok(())
}

/// A file of tests: what runs it, and the tests in it.
struct TestFile<'a> {
    package: &'a str,
    executable: &'a str,
    tests: Vec<String>,
}

impl TestFile<'_> {
    /// Its line of the suite's list.
    fn line(&self, name: &str, tests: &[&str]) -> String {
        let tests: Vec<String> = tests.iter().map(|test| format!("{name}::{test}")).collect();
        format!("{name} {} {}\n", self.executable, tests.join(" "))
    }

    fn whole(&self, name: &str) -> String {
        self.line(name, &self.tests.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// A test of a program of integration tests.
pub(crate) struct ListedTest<'a> {
    pub(crate) package: &'a str,
    pub(crate) executable: &'a str,
    /// With its file: `FILE::TEST`.
    pub(crate) name: String,
}

impl ListedTest<'_> {
    /// The file that it is in.
    pub(crate) fn file(&self) -> &str {
        self.name.split("::").next().unwrap_or_default()
    }
}

/// All tests of the programs of integration tests.
pub(crate) fn tests_of(built: &[Executable]) -> Result<Vec<ListedTest<'_>>> {
    let mut tests = Vec::new();
    for built in built.iter().filter(|built| built.is_test && built.name == INTEGRATION) {
        let listed = Command::new(&built.path).args(["--list", "--format", "terse"]).output()?;
        ensure!(listed.status.success(), "{} --list: {}", built.path, listed.status);
        for line in String::from_utf8(listed.stdout)?.lines() {
            let name = line.strip_suffix(": test").filter(|name| name.contains("::"));
            let name = name.with_context(|| format!("{} lists {line:?}", built.path))?.to_owned();
            tests.push(ListedTest { package: &built.package, executable: &built.path, name });
        }
    }
    Ok(tests)
}

/// The files of tests that may run in a guest, by name.
fn files_of_tests(built: &[Executable]) -> Result<BTreeMap<String, TestFile<'_>>> {
    let mut files = BTreeMap::new();
    for test in tests_of(built)? {
        let Some((name, of_file)) = test.name.split_once("::") else { continue };
        if test.package == "vmio" || BEYOND_THE_LIBRARY.contains(&(test.package, name)) {
            let new = || TestFile { package: test.package, executable: test.executable, tests: Vec::new() };
            files.entry(name.to_owned()).or_insert_with(new).tests.push(of_file.to_owned());
        }
    }
    Ok(files)
}

/// The suite's list, a file of tests on each line: its name, an executable, and the tests to run.
fn shortened(files: &BTreeMap<String, TestFile>) -> Result<String> {
    for LeftOut { files: names, tests, reason } in LEFT_OUT {
        println!("left out: {} {}: {reason}", names.join(", "), tests.join(", "));
        let are_there = |test: &&str| {
            names.iter().any(|name| files.get(*name).is_some_and(|file| file.tests.iter().any(|other| other == test)))
        };
        ensure!(tests.iter().all(are_there), "one of them is not there");
    }
    let mut list = String::new();
    for (name, file) in files.iter().filter(|(_, file)| file.package == "vmio") {
        let left_out = || LEFT_OUT.iter().filter(|left_out| left_out.files.contains(&name.as_str()));
        if left_out().all(|left_out| !left_out.tests.is_empty()) {
            let runs = |test: &&str| !left_out().any(|left_out| left_out.tests.contains(test));
            list += &file.line(name, &file.tests.iter().map(String::as_str).filter(runs).collect::<Vec<_>>());
        }
    }
    Ok(list)
}

/// The same for whole files.
fn named(files: &BTreeMap<String, TestFile>, wanted: &[impl AsRef<str>]) -> Result<String> {
    let lines = wanted.iter().map(|wanted| {
        let name = wanted.as_ref();
        let file = files.get(name).with_context(|| format!("no file of tests is called {name}"))?;
        Ok(file.whole(name))
    });
    lines.collect()
}

/// Whether `vmio doctor` has found on a kernel what its version has, and nothing else.
fn check_features(doctor: &str, series: Series) -> Result<()> {
    let doctor: Value = serde_json::from_str(doctor)?;
    let features = doctor["kernel_features"].as_array().context("vmio doctor names no features of the kernel")?;
    for feature in features {
        let since = feature["since"].as_str().context("a feature without a version")?;
        let expected = numbers_in(since) <= numbers_in(&series.name());
        ensure!(feature["ok"] == expected, "vmio doctor on Linux {}: {feature}", series.name());
    }
    println!("vmio doctor finds what Linux {} has and lacks", series.name());
    Ok(())
}

/// Has programs of a guest use each of its devices, or those that are named; 0 if all is well.
pub(crate) fn run_lab(machine: Machine, checks: &[String]) -> Result<u8> {
    programs::fetched()?;
    let mut script = String::new();
    for (name, value) in [
        ("vmio", command_of(&build_tests()?)?.to_owned()),
        ("module", module::build(machine.kernel)?.to_string_lossy().into_owned()),
    ] {
        script += &format!("export {name}={}\n", shlex::try_quote(&value)?);
    }
    let checks = shlex::try_join(checks.iter().map(String::as_str))?;
    Guest::new(machine, None)?.run(&format!("{script}tests/vm/lab {checks}"))
}

/// Has an example count what a read costs each way, in a guest whose clock counts instructions.
pub(crate) fn count_instructions(machine: Machine) -> Result<u8> {
    let machine = Machine { cores: 1, accelerator: Accelerator::Counted, ..machine };
    let built = build(&["build", "--release", "--package", "vmio", "--example", "io_instructions"])?;
    let [program] = &built[..] else { bail!("{} executables, not one", built.len()) };
    let guest = Guest::new(machine, None)?;
    guest.run(&format!(
        "tests/vm/persistent-memory /run/dax && fallocate -l 64M /run/dax/file && exec {} /dev/ng0n1 /run/dax/file",
        shlex::try_quote(&program.path)?
    ))
}

/// The list of some files of tests without some of their tests, which it prints.
fn without(files: &BTreeMap<String, TestFile>, names: &[&str], left_out: &[(&str, &str)]) -> Result<String> {
    for (test, reason) in left_out {
        println!("left out: {test}: {reason}");
    }
    let lines = names.iter().map(|name| {
        let file = files.get(*name).with_context(|| format!("no file of tests is called {name}"))?;
        let runs = |test: &&str| !left_out.iter().any(|(other, _)| other == test);
        Ok(file.line(name, &file.tests.iter().map(String::as_str).filter(runs).collect::<Vec<_>>()))
    });
    lines.collect()
}

/// What cargo has built.
pub(crate) struct Executable {
    /// The folder of its package.
    package: String,
    name: String,
    /// Whether it is an integration test.
    is_test: bool,
    /// Whether it is a program of the package's.
    is_program: bool,
    path: String,
}

impl Executable {
    fn from_message(message: &Value) -> Option<Self> {
        let package = Path::new(message["manifest_path"].as_str()?).parent()?.file_name()?;
        Some(Executable {
            package: package.to_str()?.to_owned(),
            name: message["target"]["name"].as_str()?.to_owned(),
            is_test: message["target"]["kind"][0] == "test",
            is_program: message["target"]["kind"][0] == "bin" && message["profile"]["test"] == false,
            path: message["executable"].as_str()?.to_owned(),
        })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Whether it is an integration test.
    pub(crate) fn is_test(&self) -> bool {
        self.is_test
    }
}

/// The command `vmio`.
fn command_of(built: &[Executable]) -> Result<&str> {
    let command = built.iter().find(|built| built.is_program && built.name == "vmio");
    Ok(&command.context("cargo has built no command")?.path)
}

/// Has cargo build the tests of the whole workspace and the command, with the features that `scripts/test` builds them with for the host: so
/// they are not built again.
pub(crate) fn build_tests() -> Result<Vec<Executable>> {
    let features = std::env::var("VMIO_TEST_FEATURES").unwrap_or_default();
    build(&["test", "--workspace", "--no-run", "--features", &features])
}

/// Has cargo build something.
pub(crate) fn build(arguments: &[&str]) -> Result<Vec<Executable>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).args(["--message-format", "json"]).current_dir(workspace());
    let built = cargo.stderr(Stdio::inherit()).output().context("running cargo")?;
    ensure!(built.status.success(), "{cargo:?}: {}", built.status);
    let mut executables = Vec::new();
    for line in String::from_utf8(built.stdout)?.lines() {
        executables.extend(Executable::from_message(&serde_json::from_str(line)?));
    }
    Ok(executables)
}
