//! `vmio run` of programs that store to a mapping while their disk is full, or load from one that another process has made shorter.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::disk::{Disk, FileSystem};
use crate::common::programs::{compiled, text};
use crate::common::{TestResult, refused, vmio};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// The space left, of the 32 MiB that the program wants.
const LEFT_BYTES: u64 = 4 << 20;

/// The engines that need no module.
const ENGINES: [&str; 2] = ["managed", "reader-thread"];

/// Fills most of a file system with one file.
fn fill(folder: &Path) -> TestResult {
    let filler = File::create(folder.join("filler"))?;
    for chunk in [8 << 20, 1 << 20, 1 << 16] {
        let mut len = filler.metadata()?.len();
        loop {
            match fallocate(&filler, FallocateFlags::empty(), len, chunk) {
                Ok(()) => len += chunk,
                Err(Errno::NOSPC) => break,
                Err(error) => return Err(error.into()),
            }
        }
        filler.set_len(len)?;
    }
    Ok(filler.set_len(filler.metadata()?.len() - LEFT_BYTES)?)
}

fn under(options: &[&str], folder: &Path, words: &[&str]) -> Command {
    let mut command = vmio();
    let cache: &[&str] = if options.contains(&"--cache") { &[] } else { &["--cache", "8M"] };
    command.arg("run").args(cache).args(options).arg("--under").arg(folder).arg("--").args(words);
    command
}

fn outcome(command: &mut Command) -> Result<(Output, String), Box<dyn Error>> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((output, said))
}

#[test]
fn a_program_whose_disk_is_full_is_told_why_or_waits_for_room() -> TestResult {
    for kind in [FileSystem::Ext4, FileSystem::Xfs] {
        let dir = tempfile::tempdir()?;
        let program = compiled("stores_all", dir.path(), &[])?;
        let Some(disk) = Disk::new(dir.path(), kind)? else { return Ok(()) };
        fill(disk.path())?;
        let data = disk.path().join("data");

        let (output, said) = outcome(&mut under(&[], disk.path(), &[text(&program), text(&data)]))?;
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{kind:?}: {said}");
        let why = format!("of {}: No space left on device", data.display());
        assert_eq!(said.matches(&why).count(), 1, "{kind:?}: {said}");

        let (output, said) = outcome(&mut under(&[], disk.path(), &[text(&program), text(&data), "handle"]))?;
        assert_eq!(output.status.code(), Some(5), "{kind:?}: {said}");
        assert_eq!(output.stdout, b"SIGBUS, code 2\n", "{kind:?}: {said}");
        assert_eq!(said.matches(&why).count(), 1, "{kind:?}: {said}");

        let mut command = under(&["--on-full", "wait"], disk.path(), &[text(&program), text(&data)]);
        let mut waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut said = String::new();
        let mut errors = BufReader::new(waiting.stderr.take().ok_or("no standard error")?);
        errors.read_line(&mut said)?;
        assert!(said.contains("the program waits") && said.contains(&why), "{kind:?}: {said}");
        assert!(waiting.try_wait()?.is_none(), "{kind:?}: it waits");
        fs::remove_file(disk.path().join("filler"))?;
        let output = waiting.wait_with_output()?;
        assert!(output.status.success() && output.stdout == b"all stored\n", "{kind:?}: {}", output.status);
        let stored = fs::read(&data)?;
        let is_right = |(page, bytes): (usize, &[u8])| bytes[0] == (page + 1) as u8;
        assert!(stored.len() == 32 << 20 && stored.chunks(4096).enumerate().all(is_right), "{kind:?}");
    }
    Ok(())
}

#[test]
fn a_program_that_waits_for_room_gets_its_signals() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("stores_all", dir.path(), &[])?;
    let Some(disk) = Disk::new(dir.path(), FileSystem::Ext4)? else { return Ok(()) };
    fill(disk.path())?;
    let words = [text(&program), text(&disk.path().join("data")), "signal"].map(str::to_owned);
    let mut command = under(&["--on-full", "wait"], disk.path(), &words.each_ref().map(String::as_str));
    let mut waiting = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let process = Pid::from_child(&waiting);
    let mut said = String::new();
    BufReader::new(waiting.stderr.take().ok_or("no standard error")?).read_line(&mut said)?;
    assert!(said.contains("the program waits"), "{said}");
    kill_process(process, Signal::USR1)?;
    let mut handled = String::new();
    BufReader::new(waiting.stdout.take().ok_or("no standard output")?).read_line(&mut handled)?;
    assert_eq!(handled, "handled\n");
    assert!(waiting.try_wait()?.is_none(), "it waits");
    kill_process(process, Signal::TERM)?;
    assert_eq!(waiting.wait()?.signal(), Some(libc::SIGTERM));
    Ok(())
}

#[test]
fn a_file_that_was_made_shorter_is_named() -> TestResult {
    for engine in ENGINES {
        let dir = tempfile::tempdir()?;
        let (program, data) = (compiled("stores_all", dir.path(), &[])?, dir.path().join("data"));
        let options = ["--engine", engine];
        let (output, said) = outcome(&mut under(&options, dir.path(), &[text(&program), text(&data), "cut"]))?;
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{engine}: {said}");
        let why = format!(
            "{} was made shorter while it was mapped: it ends at byte 4096, and the program touched byte 5242880",
            data.display()
        );
        assert_eq!(said.matches(&why).count(), 1, "{engine}: {said}");
    }
    Ok(())
}

/// Even at once, while reader threads still refuse the page, and even if vmio has adopted the shorter length.
#[test]
fn what_was_cut_off_can_be_had_again_once_the_file_is_longer() -> TestResult {
    for (engine, how) in ENGINES.into_iter().flat_map(|engine| ["regrow", "regrow-told"].map(|how| (engine, how))) {
        let dir = tempfile::tempdir()?;
        let (program, data) = (compiled("stores_all", dir.path(), &[])?, dir.path().join("data"));
        let options = ["--engine", engine];
        let (output, said) = outcome(&mut under(&options, dir.path(), &[text(&program), text(&data), how]))?;
        assert!(output.status.success(), "{engine}, {how}: {}: {said}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "loaded 0 and synced\n", "{engine}, {how}: {said}");
        assert_eq!(fs::read(&data)?[6 << 20], 9, "{engine}, {how}");
    }
    Ok(())
}

#[test]
fn reader_threads_tell_why_what_they_hold_cannot_be_written() -> TestResult {
    let dir = tempfile::tempdir()?;
    let program = compiled("stores_all", dir.path(), &[])?;
    let Some(disk) = Disk::new(dir.path(), FileSystem::Ext4)? else { return Ok(()) };
    fill(disk.path())?;
    let data = disk.path().join("data");
    let why = format!("of {}: No space left on device", data.display());

    let options = ["--engine", "reader-thread"];
    let (output, said) = outcome(&mut under(&options, disk.path(), &[text(&program), text(&data)]))?;
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{said}");
    assert_eq!(said.matches(&why).count(), 1, "{said}");

    let (output, said) = outcome(&mut under(&options, disk.path(), &[text(&program), text(&data), "handle"]))?;
    assert_eq!((output.status.code(), said.matches(&why).count()), (Some(5), 1), "{said}");
    assert!(said.contains("stores are lost"), "{said}");

    // If all pages fit the cache, msync fails, and the final message says that the stores are lost.
    let options = ["--engine", "reader-thread", "--cache", "64M"];
    let (output, said) = outcome(&mut under(&options, disk.path(), &[text(&program), text(&data)]))?;
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("stores are lost") && said.contains("No space left on device"), "{said}");
    Ok(())
}

/// A mapping for stores gets its space when it is made, and not before.
const MAPS_HOLES: &str = r#"
import errno, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
size = int(sys.argv[2]) << 20
os.ftruncate(fd, size)
room = lambda: os.fstat(fd).st_blocks * 512 >> 20
loads = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
before = room()
try:
    stores = mmap.mmap(fd, size // 4, offset=size // 4)
    stores[:] = b"1" * (8 << 20)
    print(before, room(), os.fstat(fd).st_size >> 20)
    stores = mmap.mmap(fd, 0)
    print(room())
except OSError as error:
    print(errno.errorcode[error.errno], room())
"#;

#[test]
fn what_is_mapped_for_stores_gets_its_room_first_if_asked() -> TestResult {
    for (engine, kind) in ENGINES.into_iter().zip([FileSystem::Ext4, FileSystem::Xfs]) {
        let dir = tempfile::tempdir()?;
        let Some(disk) = Disk::new(dir.path(), kind)? else { return Ok(()) };
        let data = disk.path().join("data");
        let options = ["--engine", engine, "--preallocate"];
        let maps = |mib| outcome(&mut under(&options, disk.path(), &["python3", "-c", MAPS_HOLES, text(&data), mib]));
        let (output, said) = maps("32")?;
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed, "0 8 32\n32\n", "{engine}, {kind:?}: {said}");

        fs::remove_file(&data)?;
        fill(disk.path())?;
        let (output, said) = maps("32")?;
        assert!(output.stdout.starts_with(b"ENOSPC "), "{engine}, {kind:?}: {said}");
        // If the disk could never hold the range, the allocation does not begin.
        fs::remove_file(&data)?;
        let (output, said) = maps("4096")?;
        assert_eq!(output.stdout, b"ENOSPC 0\n", "{engine}, {kind:?}: {said}");
    }
    Ok(())
}

/// A page cannot be written when the kernel is about to punch a hole there, and can be written later.
const PUNCHES: &str = r#"
import ctypes, errno, mmap, os, resource
c = ctypes.CDLL(None, use_errno=True)
fd = os.open("data", os.O_RDWR)
at = 800 << 10
def punch(): return c.fallocate(fd, 3, ctypes.c_long(at), ctypes.c_long(4096))
map = mmap.mmap(fd, 0)
map[at] = 1
resource.setrlimit(resource.RLIMIT_FSIZE, (512 << 10, resource.RLIM_INFINITY))
refused = punch(), ctypes.get_errno()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
if refused[0] == 0:
    map.flush()
    raise SystemExit(f"there is a hole, and then {os.pread(fd, 1, at)}")
assert refused == (-1, errno.EFBIG), refused
assert os.pread(fd, 1, at) == bytes([1])
assert punch() == 0
map.flush()
assert os.pread(fd, 1, at) == bytes([map[at]]) == b"\0"
"#;

#[test]
fn what_could_not_be_written_does_not_come_over_what_the_kernel_does_then() -> TestResult {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("data"), vec![7; 1 << 20])?;
    let mut command = under(&["--engine", "reader-thread"], dir.path(), &["python3", "-c", PUNCHES]);
    let (output, said) = outcome(command.current_dir(dir.path()))?;
    assert!(output.status.success(), "{said}");
    Ok(())
}

#[test]
fn waiting_takes_pages_of_linuxs_own() -> TestResult {
    let dir = tempfile::tempdir()?;
    let options = ["--engine", "reader-thread", "--on-full", "wait"];
    refused(&mut under(&options, dir.path(), &["true"]), "--on-full wait requires --engine managed")
}
