//! `vmio run --mode` on a mounted vmio-pmfs on persistent memory: syncs of files that have nothing left to do, and of those that have.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::common::modes::under;
use crate::common::programs::{compiled, has, leave_out, plain, text};
use crate::common::{TestResult, succeeded, vmio};
use crate::pmfs::{Mounted, can_mount, fsck, made};
use crate::pmfs_durable_appends::counted;

/// On an ordinary file a test needs the option: no power fails here, only programs end.
const PERSISTENT: &[&str] = &["--assume-persistent"];

/// Does what it is told, line by line, and says when it has done it.
const PROGRAM: &str = r#"
import mmap, os, sys, time
path, length = sys.argv[1], 1 << 20
fd = os.open(path, os.O_RDWR)
end = os.fstat(fd).st_size
def overwrite():
    for n in range(200): assert os.pwrite(fd, b"w" * 4000, n * 4000) == 4000
def lease():
    for _ in range(1000):
        overwrite()
        if "/image" in open("/proc/self/maps").read(): return
        time.sleep(0.01)
    assert False, "no lease"
def append():
    global end
    assert os.pwrite(fd, b"a" * 4000, end) == 4000
    end += 4000
def sync(): os.fsync(fd); os.fdatasync(fd)
def map():
    global shown
    shown = mmap.mmap(fd, length)
def map_for_loads():
    global shown
    shown = mmap.mmap(fd, length, prot=mmap.PROT_READ)
def store(): shown[5000:5008] = b"by store"
def unmap(): shown.close()
for line in sys.stdin:
    for call in line.split(): globals()[call]()
    print("done", flush=True)
"#;

/// The program while it runs.
struct Told {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Told {
    fn begin(mut command: Command) -> Result<Told, Box<dyn Error>> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take().ok_or("no input")?, child.stdout.take().ok_or("no output")?);
        Ok(Told { child, input, output: BufReader::new(output) })
    }

    /// Has it make some calls; an error if it has ended before it was done.
    fn to(&mut self, calls: &str) -> TestResult {
        writeln!(self.input, "{calls}")?;
        let mut said = String::new();
        self.output.read_line(&mut said)?;
        if said == "done\n" { Ok(()) } else { Err(format!("{calls}: {said:?}").into()) }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn can_run() -> bool {
    let can = can_mount() && has("python3");
    if !can {
        _ = leave_out("python3");
    }
    can
}

fn program(file: &Path) -> [&str; 4] {
    ["python3", "-c", PROGRAM, text(file)]
}

/// The bytes of the file at 5000 once the server is killed, and nobody else has anything of the file left.
fn found_after_a_kill(
    mounted: Mounted,
    programs: Vec<Told>,
    image: &Path,
    folder: &Path,
) -> Result<Vec<u8>, Box<dyn Error>> {
    mounted.kill()?;
    drop(programs);
    let mut mounted = None;
    assert!(test_depth::comes_true(|| {
        mounted = Mounted::with(image, folder, PERSISTENT).ok();
        mounted.is_some()
    }));
    let found = fs::read(folder.join("data"))?[5000..5008].to_vec();
    mounted.ok_or("no mount")?.unmount()?;
    fsck(image)?;
    Ok(found)
}

#[test]
fn a_sync_with_nothing_left_to_do_asks_nobody() -> TestResult {
    if !can_run() {
        return Ok(());
    }
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::with(&image, &folder, PERSISTENT)?;
    let file = folder.join("data");
    for mode in ["posix", "sync"] {
        fs::write(&file, vec![0; 1 << 20])?;
        let mut program = Told::begin(under(mode, &folder, &program(&file)))?;
        program.to("lease append append sync")?;
        // A mapping for loads changes nothing: it is made of leases, too.
        program.to("map_for_loads")?;
        // The server may take something back just before it stops, as it moves blocks.
        let asks_nobody = (0..5).any(|_| {
            let has_blocks = program.to("lease append sync");
            has_blocks.is_ok() && matches!(mounted.stopped(|| program.to("overwrite append sync")), Ok(Ok(())))
        });
        assert!(asks_nobody, "{mode}");
        program.to("append sync")?;
    }
    mounted.unmount()?;
    fsck(&image)
}

#[test]
fn a_sync_finds_stores_that_another_program_has_made_to_the_page_cache() -> TestResult {
    if !can_run() {
        return Ok(());
    }
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::with(&image, &folder, PERSISTENT)?;
    let file = folder.join("data");
    fs::write(&file, vec![0; 1 << 20])?;
    let mut served = Told::begin(under("posix", &folder, &program(&file)))?;
    served.to("lease sync")?;
    let mut other = Told::begin(plain(&program(&file)))?;
    other.to("map store")?;
    served.to("sync")?;
    let found = found_after_a_kill(mounted, vec![served, other], &image, &folder)?;
    assert_eq!(found, b"by store");
    Ok(())
}

#[test]
fn a_mapping_that_has_ended_has_left_its_stores_to_the_file() -> TestResult {
    if !can_run() {
        return Ok(());
    }
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let (image, folder) = (made(dir.path())?, dir.path().join("mounted"));
    let mounted = Mounted::with(&image, &folder, PERSISTENT)?;
    let file = folder.join("data");
    fs::write(&file, vec![0; 1 << 20])?;
    let mut served = Told::begin(under("posix", &folder, &program(&file)))?;
    served.to("map store unmap map unmap sync")?;
    let found = found_after_a_kill(mounted, vec![served], &image, &folder)?;
    assert_eq!(found, b"by store");
    Ok(())
}

#[test]
fn a_handler_appends_to_the_file_whose_append_it_has_interrupted() -> TestResult {
    if !can_run() {
        return Ok(());
    }
    let dir = tempfile::tempdir_in("/dev/shm")?;
    let program = compiled("appends_in_handlers", dir.path(), &[])?;
    let (image, folder) = (dir.path().join("image"), dir.path().join("mounted"));
    succeeded(vmio().args(["pmfs", "mkfs", "--size", "4G"]).arg(&image))?;
    // A process that does not answer for a second loses its leases.
    let options = [PERSISTENT, &["--lease-timeout", "1"]].concat();
    let mounted = Mounted::with(&image, &folder, &options)?;
    for mode in ["posix", "sync", "strict"] {
        let file = folder.join(mode);
        let output = under(mode, &folder, &[text(&program), text(&file), "40"]).output()?;
        let errors = String::from_utf8(output.stderr)?;
        assert!(output.status.success(), "{mode}: {}: {errors}", output.status);
        let said = String::from_utf8(output.stdout)?;
        let counts: Vec<usize> = said.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let bytes = fs::read(&file)?;
        let found = |with: u8| {
            let record = [&[with; 4095][..], b"\n"].concat();
            bytes.chunks(4096).filter(|found| *found == record).count()
        };
        assert_eq!([found(b'M'), found(b'H')], counts[..], "{mode}: {errors}");
        assert_eq!(bytes.len(), 4096 * (counts[0] + counts[1]), "{mode}");
        // Before the first handler, and after the last one.
        assert!(counted(&errors, "writes_served")? > 3500, "{mode}: the leases are gone: {errors}");
        fs::remove_file(&file)?;
    }
    mounted.unmount()?;
    fsck(&image)
}
