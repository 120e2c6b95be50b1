//! `vmio run --heap`: programs whose heap is larger than the cache do the same as without vmio.

use std::env;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use crate::common::disk::{Disk, FileSystem};
use crate::common::programs::{compiled, has, leave_out, plain, text};
use crate::common::{TestResult, refused, succeeded, vmio};
use graph_search::{Graph, RmatShape, Search};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::process::Signal;

/// Set for the process that searches the graph.
const SEARCHES: &str = "VMIO_TEST_SEARCHES";
/// Small beside the graph.
const SMALL_CACHE: (&str, u64) = ("6M", 6 << 20);

/// The command that runs a program with its heap in a file of a folder.
fn with_heap(folder: &Path, program: &[&str]) -> Command {
    let mut command = vmio();
    command.args(["run", "--cache", "16M", "--heap-size", "1G", "--heap"]).arg(folder.join("heap"));
    command.arg("--").args(program);
    command
}

/// Runs a program, which prints the same with the heap, and leaves no file.
fn same_as_plain(program: &[&str]) -> TestResult {
    let folder = tempfile::tempdir()?;
    let expected = succeeded(&mut plain(program))?;
    assert!(succeeded(&mut with_heap(folder.path(), program))? == expected, "{program:?} prints something else");
    assert_eq!(fs::read_dir(folder.path())?.count(), 0);
    Ok(())
}

#[test]
fn threads_and_forked_processes_have_their_heap() -> TestResult {
    let folder = tempfile::tempdir()?;
    let program = compiled("heap", folder.path(), &[])?;
    same_as_plain(&[text(&program)])
}

#[test]
fn what_cannot_be_had_is_told_as_the_c_library_does() -> TestResult {
    let folder = tempfile::tempdir()?;
    let program = compiled("odd_sizes", folder.path(), &[])?;
    same_as_plain(&[text(&program)])
}

#[test]
fn sort_of_more_than_the_cache() -> TestResult {
    let folder = tempfile::tempdir()?;
    let lines = (0..400_000_u64).map(|line| format!("{:020} {line}\n", line.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let input = folder.path().join("lines");
    fs::write(&input, lines.collect::<String>())?;
    same_as_plain(&["sort", "-S", "64M", text(&input)])
}

#[test]
fn a_python_dictionary_of_more_than_the_cache() -> TestResult {
    if !has("python3") {
        return leave_out("there is no python3");
    }
    // Python's own allocator maps memory itself.
    same_as_plain(&[
        "env",
        "PYTHONMALLOC=malloc",
        "python3",
        "-c",
        "d = {i: str(i) for i in range(400000)}; print(len(d), sum(map(len, d.values())))",
    ])
}

#[test]
fn searches_of_a_graph_of_twice_the_cache() -> TestResult {
    let folder = tempfile::tempdir()?;
    let itself = env::current_exe()?;
    let program = [text(&itself), "--exact", "run_heap::program_that_searches", "--nocapture"];
    let found = |mut command: Command| -> Result<Vec<String>, Box<dyn std::error::Error>> {
        let printed = succeeded(command.env(SEARCHES, "yes"))?;
        Ok(printed.lines().filter(|line| line.starts_with("from ")).map(str::to_owned).collect())
    };
    let expected = found(plain(&program))?;
    assert_eq!(expected.len(), 2);
    let mut command = vmio();
    command.args(["run", "--cache", SMALL_CACHE.0, "--heap-size", "1G", "--heap"]).arg(folder.path().join("heap"));
    command.arg("--").args(program);
    assert_eq!(found(command)?, expected);
    Ok(())
}

/// A program with a heap that it knows nothing of; not a test.
#[test]
fn program_that_searches() -> TestResult {
    if env::var_os(SEARCHES).is_none() {
        return Ok(());
    }
    let shape = RmatShape { scale: 17, edges_per_vertex: 12, seed: 1 };
    let graph = Graph::from_edges(shape.vertices(), shape.edges());
    assert!(graph.bytes() >= 2 * SMALL_CACHE.1, "{} bytes are not much", graph.bytes());
    for source in graph.sources(2, 1) {
        let search = Search::run(&graph, source);
        search.check(&graph)?;
        println!("from {source}: {} reached, {} levels", search.reached(), search.levels());
    }
    Ok(())
}

#[test]
fn a_file_that_is_there_is_left_as_it_is() -> TestResult {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("heap"), "precious")?;
    refused(&mut with_heap(folder.path(), &["true"]), "--heap takes a file that does not exist yet")?;
    assert_eq!(fs::read(folder.path().join("heap"))?, b"precious");
    Ok(())
}

#[test]
fn a_heap_without_room_is_refused() -> TestResult {
    let folder = tempfile::tempdir()?;
    let mut command = vmio();
    command.args(["run", "--cache", "16M", "--heap-size", "1M", "--heap"]).arg(folder.path().join("heap"));
    refused(command.args(["--", "true"]), "--heap-size")
}

/// A program whose variables the library does not understand would lack the heap that its user was promised.
#[test]
fn a_program_with_a_wrong_variable_does_not_start() -> TestResult {
    for (name, value) in [
        ("VMIO_HEAP_PROCESS", "me"),
        ("VMIO_HEAP_CACHE", "much"),
        ("VMIO_HEAP_BYTES", "-1"),
        ("VMIO_HEAP_ENGINE", "steam"),
    ] {
        let folder = tempfile::tempdir()?;
        let set = format!("{name}={value}");
        let output = with_heap(folder.path(), &["env", &set, "echo", "started"]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*output.stdout), (Some(126), &b""[..]), "{set}: {said}");
        assert_eq!(said, format!("vmio run: the program does not start: {name} has no such value as {value}\n"));
    }
    let folder = tempfile::tempdir()?;
    let output = with_heap(folder.path(), &["env", "-u", "VMIO_HEAP_FILE", "echo", "started"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*output.stdout), (Some(126), &b""[..]), "{said}");
    assert_eq!(said, "vmio run: the program does not start: VMIO_HEAP_FILE is missing\n");
    Ok(())
}

/// A program cannot know that its memory is a file, so a message says it. A signal that somebody sent gets no message.
#[test]
fn a_heap_that_gets_no_room_says_why_the_program_ends() -> TestResult {
    let folder = tempfile::tempdir()?;
    let Some(disk) = Disk::new(folder.path(), FileSystem::Ext4)? else { return Ok(()) };
    let free = statvfs(disk.path())?;
    let filler = File::create(disk.path().join("filler"))?;
    fallocate(&filler, FallocateFlags::empty(), 0, free.f_bavail * free.f_frsize - (16 << 20))?;
    let store = "x = bytearray(100 << 20)\nfor n in range(0, len(x), 4096): x[n] = 1";
    let send = "import os; os.kill(os.getpid(), 7)";
    for (program, is_told) in [(store, true), (send, false)] {
        let output = with_heap(disk.path(), &["python3", "-c", program]).output()?;
        let said = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.signal(), Some(Signal::BUS.as_raw()), "{said}");
        assert_eq!(said.contains("is the file system of --heap full"), is_told, "{said}");
    }
    Ok(())
}
