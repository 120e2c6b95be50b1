//! Processes that have files of a mounted vmio-pmfs mapped, and die, are stopped, or lose the server.

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Lines, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use vmio::backing::{DaxBacking, FileBacking};
use vmio::{Access, Cache, Engine, Mapping, MappingOptions};

use crate::common::{TestResult, patterned, vmio};
use crate::pmfs::{Mounted, can_mount, fsck, made};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
const OF_PROGRAM: &str = "VMIO_TEST_PMFS_PROGRAM";
const ANSWER: &str = "answer: ";

/// The way in which a program uses a file.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// By its extents.
    Leased,
    /// By the kernel's page cache.
    Kernel,
    /// By calls, under `vmio run --mode posix`.
    Calls,
}

/// A process that does as it is told with a file.
struct Program {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(way: Way, path: &Path) -> Result<Program, Box<dyn Error>> {
        let mut command = match way {
            Way::Calls => {
                let mut run = vmio();
                run.args(["run", "--mode", "posix", "--under"]).arg(path.parent().ok_or("no folder")?);
                run.arg("--").arg(env::current_exe()?);
                run
            }
            _ => Command::new(env::current_exe()?),
        };
        let name = match way {
            Way::Leased => "leased",
            Way::Kernel => "kernel",
            Way::Calls => "calls",
        };
        command.args(["--exact", "pmfs_holders::program_that_is_told_what_to_do", "--nocapture"]);
        command.env(OF_PROGRAM, format!("{name}:{}", path.display())).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let commands = child.stdin.take().ok_or("no input")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        let mut program = Program { child, commands, answers };
        assert_eq!(program.answer()?, "ready");
        Ok(program)
    }

    fn answer(&mut self) -> Result<String, Box<dyn Error>> {
        loop {
            let line = self.answers.next().ok_or("it has ended")??;
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return Ok(answer.to_owned());
            }
        }
    }

    fn tell(&mut self, command: &str) -> Result<String, Box<dyn Error>> {
        writeln!(self.commands, "{command}")?;
        self.answer()
    }

    fn signal(&self, signal: Signal) -> TestResult {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Stops it. When this returns, no thread of it runs.
    fn stop(&self) -> TestResult {
        self.signal(Signal::STOP)?;
        let threads = format!("/proc/{}/task", self.child.id());
        let is_stopped = |thread: fs::DirEntry| {
            // The state follows the name, which is in brackets.
            let stat = fs::read_to_string(thread.path().join("stat"));
            stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')))
        };
        let are_stopped =
            || fs::read_dir(&threads).is_ok_and(|mut threads| threads.all(|thread| thread.is_ok_and(is_stopped)));
        assert!(test_depth::comes_true(are_stopped), "it goes on");
        Ok(())
    }

    fn kill(mut self) -> TestResult {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Run by the other tests as a program of its own.
#[test]
fn program_that_is_told_what_to_do() -> TestResult {
    let Some(told) = env::var_os(OF_PROGRAM) else { return Ok(()) };
    let told = told.into_string().map_err(|_| "a strange path")?;
    let (way, path) = told.split_once(':').ok_or("no path")?;
    let answer = |said: &str| writeln!(io::stdout(), "{ANSWER}{said}");
    let cache = Cache::builder().engine(Engine::Managed).capacity(64 << 20).build()?;
    let map = match way {
        "leased" => Some(Mapping::open_direct(DaxBacking::open(path, Access::ReadWrite)?, MappingOptions::new())?),
        "kernel" => Some(Mapping::open(&cache, FileBacking::open(path, Access::ReadWrite)?, MappingOptions::new())?),
        _ => None,
    };
    let file = match way {
        "calls" => Some(File::options().read(true).append(true).open(path)?),
        "writes" => Some(File::options().append(true).open(path)?),
        _ => None,
    };
    answer("ready")?;
    for line in io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok()).unwrap_or_default();
        match (words[0], &map, &file) {
            ("store", Some(map), _) => match map.write_at(number(1), &[number(2) as u8]) {
                Ok(()) => answer("stored")?,
                Err(_) => answer("refused")?,
            },
            ("load", Some(map), _) => {
                let mut byte = [0];
                match map.read_at(number(1), &mut byte) {
                    Ok(()) => answer(&byte[0].to_string())?,
                    Err(_) => answer("refused")?,
                }
            }
            ("append", _, Some(file)) => {
                for index in 0..number(1) {
                    (&*file).write_all(&[(index % 251) as u8; BLOCK])?;
                }
                answer("appended")?;
            }
            _ => return Err(format!("{line}?").into()),
        }
    }
    Ok(())
}

/// A mount, and a file of 6 MiB on it.
fn mounted(dir: &Path, options: &[&str]) -> Result<(Mounted, PathBuf, PathBuf), Box<dyn Error>> {
    let (image, folder) = (made(dir)?, dir.join("mounted"));
    let mounted = Mounted::with(&image, &folder, options)?;
    let path = folder.join("file");
    fs::write(&path, patterned(6 * MIB as usize))?;
    Ok((mounted, image, path))
}

#[test]
fn a_program_that_maps_by_the_kernel_sees_what_holders_store_and_they_see_its_stores() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (mounted, image, path) = mounted(dir.path(), &[])?;
    let mut leased = Program::start(Way::Leased, &path)?;
    assert_eq!(leased.tell("store 5000 7")?, "stored");
    let mut kernel = Program::start(Way::Kernel, &path)?;
    assert_eq!(kernel.tell("load 5000")?, "7");
    // From now on both have the same pages.
    assert_eq!(kernel.tell("store 5000 8")?, "stored");
    assert_eq!(leased.tell("load 5000")?, "8");
    assert_eq!(leased.tell("store 3000000 9")?, "stored");
    assert_eq!(kernel.tell("load 3000000")?, "9");
    drop((leased, kernel));
    assert_eq!(fs::read(&path)?[5000], 8);
    // Nobody has it open: it can be leased again.
    let mut leased = Program::start(Way::Leased, &path)?;
    assert_eq!(leased.tell("load 3000000")?, "9");
    drop(leased);
    mounted.unmount()?;
    fsck(&image)
}

#[test]
fn two_holders_store_to_the_same_file_and_one_is_killed() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (mounted, image, path) = mounted(dir.path(), &[])?;
    let (mut one, mut other) = (Program::start(Way::Leased, &path)?, Program::start(Way::Leased, &path)?);
    for at in [0, 1_000_000, 5_000_000] {
        assert_eq!(one.tell(&format!("store {at} 1"))?, "stored");
        assert_eq!(other.tell(&format!("load {at}"))?, "1");
        assert_eq!(other.tell(&format!("store {at} 2"))?, "stored");
        assert_eq!(one.tell(&format!("load {at}"))?, "2");
    }
    one.kill()?;
    // The killed one keeps nothing.
    File::options().write(true).open(&path)?.set_len(MIB)?;
    assert_eq!(other.tell("load 5000000")?, "refused");
    assert_eq!(other.tell("load 1000000")?, "2");
    let folder = path.parent().ok_or("no folder")?;
    let free = || rustix::fs::statvfs(folder).map(|space| space.f_bfree);
    let with_file = free()?;
    fs::remove_file(&path)?;
    assert_eq!(free()?, with_file, "it is still mapped");
    other.kill()?;
    let is_freed = || free().is_ok_and(|free| free >= with_file + MIB / BLOCK as u64);
    assert!(test_depth::comes_true(is_freed), "the killed ones keep its blocks");
    mounted.unmount()?;
    fsck(&image)
}

#[test]
fn a_holder_that_is_stopped_loses_its_leases_and_hurts_nobody() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (mounted, image, path) = mounted(dir.path(), &["--lease-timeout", "1"])?;
    let mut holder = Program::start(Way::Leased, &path)?;
    assert_eq!(holder.tell("store 5000000 7")?, "stored");
    holder.stop()?;
    File::options().write(true).open(&path)?.set_len(0)?;
    // All free space becomes another file's. The stopped process may still store to what it had.
    let other = path.with_file_name("other");
    let file = File::create(&other)?;
    let (mut end, part) = (0, patterned(65_536));
    while file.write_all_at(&part, end).is_ok() {
        end += part.len() as u64;
    }
    writeln!(holder.commands, "store 5000000 9")?;
    holder.signal(Signal::CONT)?;
    let said = holder.answer()?;
    assert!(said == "refused" || said == "stored", "{said}");
    // Once it has looked, it knows that the file is empty.
    let has_looked = || holder.tell("load 5000000").is_ok_and(|said| said == "refused");
    assert!(test_depth::comes_true(has_looked), "it goes on with what it has lost");
    let found = fs::read(&other)?;
    assert!(found.chunks(part.len()).take((end as usize) / part.len()).all(|found| found == part), "spoilt");
    drop((holder, file));
    mounted.unmount()?;
    fsck(&image)
}

#[test]
fn a_medium_is_not_mounted_anew_while_a_process_may_store_to_it() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (mounted, image, path) = mounted(dir.path(), &[])?;
    let mut holder = Program::start(Way::Leased, &path)?;
    assert_eq!(holder.tell("store 100 7")?, "stored");
    holder.stop()?;
    mounted.kill()?;
    let folder = dir.path().join("mounted");
    let output = vmio().args(["pmfs", "mount"]).arg(&image).arg(&folder).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("still have parts of it mapped"), "{said}");
    holder.signal(Signal::CONT)?;
    // Its thread finds out that it has lost the server, and drops what it had.
    let has_dropped = || holder.tell("load 5000000").is_ok_and(|said| said == "refused");
    assert!(test_depth::comes_true(has_dropped), "it keeps what it had");
    let mut mounted = None;
    let is_mounted = || {
        mounted = Mounted::new(&image, &folder).ok();
        mounted.is_some()
    };
    assert!(test_depth::comes_true(is_mounted), "the medium stays locked");
    let mounted = mounted.ok_or("no mount")?;
    assert_eq!(fs::read(&path)?[100], 7);
    assert_eq!(holder.tell("store 100 8")?, "refused");
    assert_eq!(fs::read(&path)?[100], 7);
    drop(holder);
    mounted.unmount()?;
    fsck(&image)
}

#[test]
fn what_a_program_appends_is_there_at_once_and_after_its_kill() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let path = folder.join("log");
    fs::write(&path, "")?;
    let mut program = Program::start(Way::Calls, &path)?;
    let mut expected = Vec::new();
    for blocks in [20, 1000, 3] {
        assert_eq!(program.tell(&format!("append {blocks}"))?, "appended");
        (0..blocks).for_each(|index: usize| expected.extend([(index % 251) as u8; BLOCK]));
        // Nobody looks at the last ones before the kill.
        assert!(blocks == 3 || fs::metadata(&path)?.size() == expected.len() as u64);
    }
    program.signal(Signal::KILL)?;
    program.child.wait()?;
    assert!(fs::read(&path)? == expected);
    // Another program opens it while this one appends.
    let mut program = Program::start(Way::Calls, &path)?;
    assert_eq!(program.tell("append 100")?, "appended");
    (0..100).for_each(|index: usize| expected.extend([(index % 251) as u8; BLOCK]));
    assert!(fs::read(&path)? == expected);
    assert_eq!(program.tell("append 5")?, "appended");
    (0..5).for_each(|index: usize| expected.extend([(index % 251) as u8; BLOCK]));
    assert!(fs::read(&path)? == expected);
    drop(program);
    mounted.unmount()?;
    fsck(&image)?;
    let mounted = Mounted::new(&image, &folder)?;
    assert!(fs::read(&path)? == expected);
    mounted.unmount()
}

/// Fills all free space by the kernel's calls. Returns how many blocks that were.
fn fill(path: &Path) -> Result<u64, Box<dyn Error>> {
    let (file, mut end) = (File::create(path)?, 0);
    for len in [64 * BLOCK, BLOCK] {
        while file.write_all_at(&patterned(len), end).is_ok() {
            end += len as u64;
        }
    }
    Ok(end / BLOCK as u64)
}

#[test]
fn what_a_program_is_about_to_append_to_is_taken_back_when_space_ends() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let path = folder.join("log");
    fs::write(&path, "")?;
    let free = rustix::fs::statvfs(&folder)?.f_bfree;
    let mut program = Program::start(Way::Calls, &path)?;
    // More than 2 MiB: it has most of another aligned extent.
    let appended = 600;
    assert_eq!(program.tell(&format!("append {appended}"))?, "appended");
    assert_eq!(fs::metadata(&path)?.size(), appended * BLOCK as u64);
    let filled = fill(&folder.join("all"))?;
    // Lists of extents take some blocks.
    assert!(filled + appended + 16 >= free, "{filled} and {appended} of {free} blocks");
    fs::remove_file(folder.join("all"))?;
    assert_eq!(program.tell("append 20")?, "appended");
    assert_eq!(fs::metadata(&path)?.size(), (appended + 20) * BLOCK as u64);
    drop(program);
    mounted.unmount()?;
    fsck(&image)
}

#[test]
fn appends_take_no_system_call() -> TestResult {
    if !can_mount() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::new(&image, &folder)?;
    let path = folder.join("log");
    // Open for both, and for writing alone.
    for way in ["calls", "writes"] {
        fs::write(&path, "")?;
        let mut run = vmio();
        run.args(["run", "--mode", "posix", "--stats", "--under"]).arg(&folder).arg("--").arg(env::current_exe()?);
        run.args(["--exact", "pmfs_holders::program_that_is_told_what_to_do", "--nocapture"]);
        run.env(OF_PROGRAM, format!("{way}:{}", path.display())).stdin(Stdio::piped());
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = run.spawn()?;
        child.stdin.take().ok_or("no input")?.write_all(b"append 10000\n")?;
        // The thread that takes the lease may be late on a busy machine.
        let output = child.wait_with_output()?;
        let said = String::from_utf8(output.stderr)?;
        let writes = said.split_once(" bytes, ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
        assert!(output.status.success() && writes.is_some_and(|writes| writes > 100), "{way}: {said}");
        let found = fs::read(&path)?;
        assert_eq!(found.len(), 10_000 * BLOCK);
        assert!(
            found.chunks(BLOCK).zip(0..).all(|(block, index)| block.iter().all(|byte| *byte == (index % 251) as u8))
        );
    }
    mounted.unmount()?;
    fsck(&image)
}
