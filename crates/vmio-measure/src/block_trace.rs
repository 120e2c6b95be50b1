//! The randomness of the requests to a block device, from the kernel's trace of each request.
//!
//! The kernel notes each request (a `bio`, in the form in which file systems and programs make it, before merging) in a buffer of its
//! processor. A thread of the measured process reads the buffers. This needs root, and a kernel with `CONFIG_BLK_DEV_IO_TRACE`.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use vmio_report::cleanup::Cleanup;
use vmio_report::randomness::{Access, Distances};

use crate::trace_page::{Event, TracePage};

/// Buffers of our own in the kernel, ready for a trace. Dropping them ends a trace that still runs.
pub struct TraceBuffers {
    path: PathBuf,
    _removal: Cleanup,
}

impl TraceBuffers {
    /// Mounts the kernel's file system of traces where nobody else sees it, and makes buffers there.
    pub fn create() -> anyhow::Result<Self> {
        // Its name is random: nobody can guess it and make the folder first, with links to places where nothing may be written.
        let mounted = tempfile::Builder::new().prefix("vmio-trace-").tempdir();
        let mounted = mounted.context("cannot create a folder to mount at")?.keep();
        let path = mounted.join("instances").join(format!("vmio-bench-{}", process::id()));
        let to_remove = (path.clone(), mounted.clone());
        let removal = Cleanup::register(move || remove(&to_remove.0, &to_remove.1))?;
        let mount = Command::new("mount").args(["-t", "tracefs", "tracefs"]).arg(&mounted).output()?;
        if !mount.status.success() {
            bail!("cannot mount tracefs: {}", String::from_utf8_lossy(&mount.stderr).trim());
        }
        fs::create_dir(&path).context("cannot create buffers for a trace")?;
        // A clock by which the times of all processors compare.
        fs::write(path.join("trace_clock"), "global")?;
        fs::write(path.join("buffer_size_kb"), BUFFER_KIBIBYTES.to_string())?;
        Ok(Self { path, _removal: removal })
    }

    /// The folder of the buffers.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Ends the trace, removes the buffers, and unmounts. A process that was just killed may have left the trace running.
fn remove(path: &Path, mounted: &Path) {
    let _ = fs::write(path.join(ENABLE), "0");
    for _ in 0..100 {
        if fs::remove_dir(path).is_ok() || !path.exists() {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let _ = Command::new("umount").arg("--lazy").arg(mounted).output();
    let _ = fs::remove_dir(mounted);
}

/// R of all requests, of reads and of writes; none for fewer than two requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Randomness {
    /// R of all requests.
    pub all: Option<f64>,
    /// R of reads.
    pub reads: Option<f64>,
    /// R of writes.
    pub writes: Option<f64>,
}

/// A running trace.
pub struct BlockTrace {
    enable: PathBuf,
    running: Sender<()>,
    reader: JoinHandle<Sums>,
    device_pages: u64,
}

const EVENT: &str = "events/block/block_bio_queue";
const ENABLE: &str = "events/block/block_bio_queue/enable";
/// The time between two reads of the buffers: they have room for some 60 000 requests of each processor.
const INTERVAL: Duration = Duration::from_millis(20);
const BUFFER_KIBIBYTES: u32 = 4096;
const PAGE_SECTORS: u64 = 8;
const SECTOR_BYTES: u64 = 512;

impl BlockTrace {
    /// Begins to trace the device under a folder.
    pub fn start(buffers: &Path, folder: &Path) -> anyhow::Result<Self> {
        let device = fs::metadata(folder)?.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let sectors = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size"))?;
        let device_pages = sectors.trim().parse::<u64>()? / PAGE_SECTORS;
        let layout = Layout::parse(&fs::read_to_string(buffers.join(EVENT).join("format"))?)?;
        // The kernel's own number of the device.
        let number = u64::from(major) << 20 | u64::from(minor);
        fs::write(buffers.join(EVENT).join("filter"), format!("dev == {number}"))?;
        let mut files = Vec::new();
        for processor in fs::read_dir(buffers.join("per_cpu"))? {
            let path = processor?.path().join("trace_pipe_raw");
            files.push(File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?);
        }
        let enable = buffers.join(ENABLE);
        fs::write(&enable, "1")?;
        let (running, ended) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut sums = Sums::default();
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                sums.read(&mut files, &layout);
            }
            sums.read(&mut files, &layout);
            sums
        });
        Ok(Self { enable, running, reader, device_pages })
    }

    /// Ends the trace; returns the randomness of the requests in it.
    pub fn finish(self) -> anyhow::Result<Randomness> {
        fs::write(&self.enable, "0")?;
        drop(self.running);
        let sums = self.reader.join().map_err(|_| anyhow!("the reader of the trace panicked"))?;
        let randomness = |kind: Kind| sums.distances[kind as usize].randomness(self.device_pages);
        Ok(Randomness { all: randomness(Kind::All), reads: randomness(Kind::Reads), writes: randomness(Kind::Writes) })
    }
}

/// The places of an event's fields, from the kernel's description of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    sector: usize,
    sectors: usize,
    /// The place of letters: R, W, D and more.
    kind: usize,
}

impl Layout {
    fn parse(format: &str) -> anyhow::Result<Self> {
        let offset = |field: &str| {
            let line = format.lines().find(|line| line.split(';').next().is_some_and(|name| name.contains(field)));
            let offset = line.and_then(|line| line.split("offset:").nth(1)?.split(';').next()?.parse().ok());
            offset.with_context(|| format!("the kernel's trace has no {field}"))
        };
        Ok(Self { sector: offset(" sector")?, sectors: offset(" nr_sector")?, kind: offset(" rwbs[")? })
    }

    /// The request of an event, if it moves bytes.
    fn request(&self, event: &Event<'_>) -> Option<Request> {
        let sector = u64::from_ne_bytes(event.bytes.get(self.sector..)?.first_chunk().copied()?);
        let sectors = u32::from_ne_bytes(event.bytes.get(self.sectors..)?.first_chunk().copied()?);
        // An F in front stands for a flush before the request.
        let kind = event.bytes.get(self.kind..)?;
        let kind = kind.strip_prefix(b"F").unwrap_or(kind);
        let is_write = match kind.first()? {
            b'W' => true,
            b'R' => false,
            _ => return None,
        };
        (sectors > 0).then_some(Request { time_ns: event.time_ns, sector, sectors, is_write })
    }
}

/// The requests that a sum covers.
#[derive(Clone, Copy)]
enum Kind {
    All,
    Reads,
    Writes,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    time_ns: u64,
    sector: u64,
    sectors: u32,
    is_write: bool,
}

/// The sums over all events so far.
#[derive(Default)]
struct Sums {
    distances: [Distances; 3],
    previous: [Option<Request>; 3],
}

impl Sums {
    /// Reads the events that are in the buffers.
    fn read(&mut self, files: &mut [File], layout: &Layout) {
        let mut requests = Vec::new();
        let mut page = TracePage::new();
        for file in files {
            // Each read gives a page, or an error if there is none now.
            while let Ok(bytes @ 1..) = file.read(page.buffer()) {
                requests.extend(page.events(bytes).filter_map(|event| layout.request(&event)));
            }
        }
        // The requests of each processor are in order already.
        requests.sort_by_key(|request| request.time_ns);
        requests.into_iter().for_each(|request| self.add(request));
    }

    fn add(&mut self, request: Request) {
        for kind in [Kind::All, if request.is_write { Kind::Writes } else { Kind::Reads }] {
            if let Some(previous) = self.previous[kind as usize].replace(request) {
                self.distances[kind as usize] += Distances::between(previous.access(), request.access());
            }
        }
    }
}

impl Request {
    fn access(self) -> Access {
        let bytes = u64::from(self.sectors) * SECTOR_BYTES;
        Access { page: self.sector / PAGE_SECTORS, pages: bytes.div_ceil(PAGE_SECTORS * SECTOR_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "\
name: block_bio_queue
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;

\tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;
\tfield:sector_t sector;\toffset:16;\tsize:8;\tsigned:0;
\tfield:unsigned int nr_sector;\toffset:24;\tsize:4;\tsigned:0;
\tfield:char rwbs[10];\toffset:28;\tsize:10;\tsigned:0;
";

    #[test]
    fn requests_are_taken_from_events() -> anyhow::Result<()> {
        let layout = Layout::parse(FORMAT)?;
        assert_eq!(layout, Layout { sector: 16, sectors: 24, kind: 28 });
        assert!(Layout::parse("name: other").is_err());
        let request = |sectors: u32, kind: &[u8]| {
            let bytes = [&[0; 16][..], &80_u64.to_ne_bytes(), &sectors.to_ne_bytes(), kind].concat();
            layout.request(&Event { time_ns: 7, bytes: &bytes })
        };
        let expected = |is_write| Some(Request { time_ns: 7, sector: 80, sectors: 8, is_write });
        assert_eq!(request(8, b"RA\0"), expected(false));
        assert_eq!(request(8, b"WS\0"), expected(true));
        assert_eq!(request(8, b"FWFS"), expected(true));
        assert_eq!((request(8, b"D\0"), request(0, b"FW"), request(8, b"")), (None, None, None));
        Ok(())
    }

    /// Anybody may make a folder there, before root measures.
    #[test]
    fn a_folder_of_others_in_the_temporary_one_is_left_alone() -> anyhow::Result<()> {
        let foreign = std::env::temp_dir().join(format!("vmio-trace-{}", process::id()));
        let enable = foreign.join("instances").join(format!("vmio-bench-{}", process::id())).join(ENABLE);
        fs::create_dir_all(enable.parent().context("it has no folder")?)?;
        fs::write(&enable, "precious")?;
        drop(TraceBuffers::create());
        let left = fs::read_to_string(&enable)?;
        fs::remove_dir_all(&foreign)?;
        assert_eq!(left, "precious");
        Ok(())
    }

    #[test]
    fn reads_and_writes_are_summed_together_and_apart() {
        let mut sums = Sums::default();
        for (page, is_write) in [(0, false), (100, true), (1, false), (101, true), (2, false)] {
            sums.add(Request { time_ns: 0, sector: page * PAGE_SECTORS, sectors: 8, is_write });
        }
        let randomness = |kind: Kind| sums.distances[kind as usize].randomness(1000);
        // Reads alone and writes alone are sequential: a page moved for a page accessed.
        assert_eq!((randomness(Kind::Reads), randomness(Kind::Writes)), (Some(1e-3), Some(1e-3)));
        assert!(randomness(Kind::All) > Some(0.09));
    }
}
