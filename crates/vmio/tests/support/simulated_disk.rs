//! A disk in memory that loses power: it keeps what programs read apart from what is durable, and a power cut leaves
//! any part of what was not flushed, sector by sector. All by one seed.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use vmio::backing::{Access, Backing};

use super::Random;

const SECTOR: usize = 512;

/// The disk; several files are on it, by their numbers.
#[derive(Clone)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

struct State {
    files: Vec<File>,
    random: Random,
    operations: u64,
    power_cut_at: u64,
    /// One operation in this many fails, though the disk lives on; 0 for none.
    failure_in: u64,
    failing_flushes: u64,
    discarded_bytes: u64,
}

struct File {
    live: Contents,
    durable: Contents,
    /// The versions of each sector that were written since the last flush.
    unflushed: BTreeMap<usize, Vec<[u8; SECTOR]>>,
}

/// How much of what was not flushed a power cut leaves.
#[derive(Clone, Copy)]
enum Cut {
    Nothing,
    Everything,
    /// All but one sector in this many.
    Most(u64),
    /// One sector in this many.
    Little(u64),
}

impl SimulatedDisk {
    /// Files of these lengths, all zeros.
    pub fn new(seed: u64, lengths: &[u64]) -> Self {
        let file = |len: &u64| {
            let zeros = Contents::zeros(*len as usize);
            File { live: zeros.clone(), durable: zeros, unflushed: BTreeMap::new() }
        };
        Self::with(seed, lengths.iter().map(file).collect())
    }

    fn with(seed: u64, files: Vec<File>) -> Self {
        let random = Random(seed);
        SimulatedDisk(Arc::new(Mutex::new(State {
            files,
            random,
            operations: 0,
            power_cut_at: u64::MAX,
            failure_in: 0,
            failing_flushes: 0,
            discarded_bytes: 0,
        })))
    }

    /// A file, opened.
    pub fn open(&self, file: usize) -> SimulatedFile {
        SimulatedFile { disk: self.clone(), file }
    }

    /// Cuts the power in the middle of the operation after that many more.
    pub fn cut_power_after(&self, operations: u64) {
        let mut state = self.0.lock().unwrap();
        state.power_cut_at = state.operations + operations;
    }

    /// Lets one operation in this many fail; 0 for none.
    pub fn fail_one_in(&self, operations: u64) {
        self.0.lock().unwrap().failure_in = operations;
    }

    /// Lets the next this many flushes fail.
    pub fn fail_flushes(&self, count: u64) {
        self.0.lock().unwrap().failing_flushes = count;
    }

    /// Whether the power has failed.
    pub fn has_lost_power(&self) -> bool {
        let state = self.0.lock().unwrap();
        state.operations > state.power_cut_at
    }

    /// How much was given back.
    #[allow(dead_code, reason = "for the tests of vmio-kv")]
    pub fn discarded_bytes(&self) -> u64 {
        self.0.lock().unwrap().discarded_bytes
    }

    /// What programs read of a file.
    pub fn contents(&self, file: usize) -> Vec<u8> {
        self.0.lock().unwrap().files[file].live.to_vec()
    }

    /// Changes bytes behind everybody's back, for good.
    pub fn corrupt(&self, file: usize, offset: u64, change: impl Fn(&mut u8)) {
        let file = &mut self.0.lock().unwrap().files[file];
        for contents in [&mut file.live, &mut file.durable] {
            let mut byte = [0];
            contents.read(offset as usize, &mut byte);
            change(&mut byte[0]);
            contents.write(offset as usize, &byte);
        }
    }

    /// The disk after a power cut.
    pub fn after_power_cut(&self) -> SimulatedDisk {
        let mut state = self.0.lock().unwrap();
        let State { files, random, .. } = &mut *state;
        let cut = match random.below(6) {
            0 => Cut::Nothing,
            1 => Cut::Everything,
            2 => Cut::Most(30),
            3 => Cut::Most(4),
            4 => Cut::Little(30),
            _ => Cut::Little(2),
        };
        let files = files.iter().map(|file| file.after_power_cut(random, cut)).collect();
        Self::with(random.next(), files)
    }
}

impl File {
    fn after_power_cut(&self, random: &mut Random, cut: Cut) -> File {
        let mut durable = self.durable.clone();
        let grows = match cut {
            Cut::Nothing => false,
            Cut::Everything => true,
            _ => random.below(2) == 0,
        };
        if grows {
            durable.resize(self.live.len());
        }
        for (sector, versions) in &self.unflushed {
            let stays = match cut {
                Cut::Nothing => false,
                Cut::Everything => true,
                Cut::Most(one_in) => random.below(one_in) > 0,
                Cut::Little(one_in) => random.below(one_in) == 0,
            };
            if stays {
                let last = versions.len() as u64 - 1;
                let version = if matches!(cut, Cut::Everything) { last } else { random.below(last + 1) };
                put(&mut durable, *sector, &versions[version as usize]);
            }
        }
        File { live: durable.clone(), durable, unflushed: BTreeMap::new() }
    }

    fn write(&mut self, offset: usize, data: &[u8], mut lands: impl FnMut() -> bool) {
        for (at, chunk) in (offset..).step_by(SECTOR).zip(data.chunks(SECTOR)) {
            if !lands() {
                continue;
            }
            self.live.write(at, chunk);
            let mut version = [0; SECTOR];
            let end = self.live.len().min(at + SECTOR);
            self.live.read(at, &mut version[..end - at]);
            self.unflushed.entry(at / SECTOR).or_default().push(version);
        }
    }

    /// Like writing zeros; what holds them stays as it is.
    fn discard(&mut self, range: Range<usize>, mut lands: impl FnMut() -> bool) {
        for at in range.step_by(SECTOR) {
            let mut bytes = [0; SECTOR];
            self.live.read(at, &mut bytes);
            if bytes != [0; SECTOR] || self.unflushed.contains_key(&(at / SECTOR)) {
                self.write(at, &[0; SECTOR], &mut lands);
            }
        }
    }

    fn flush(&mut self) {
        self.durable.resize(self.live.len());
        for (sector, versions) in std::mem::take(&mut self.unflushed) {
            versions.last().into_iter().for_each(|version| put(&mut self.durable, sector, version));
        }
    }

    /// As Linux does it: what could not be written is forgotten, though programs go on reading it.
    fn fail_flush(&mut self, random: &mut Random) {
        for (sector, versions) in std::mem::take(&mut self.unflushed) {
            if random.below(2) == 0 {
                let version = random.below(versions.len() as u64) as usize;
                put(&mut self.durable, sector, &versions[version]);
            }
        }
    }
}

fn put(contents: &mut Contents, sector: usize, version: &[u8; SECTOR]) {
    let start = (sector * SECTOR).min(contents.len());
    let end = (start + SECTOR).min(contents.len());
    contents.write(start, &version[..end - start]);
}

/// The bytes of a file. Copies share the pages that neither has changed, since a test makes many of large files.
#[derive(Clone)]
struct Contents {
    len: usize,
    /// None is zeros, as are the bytes behind the end.
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
}

const PAGE: usize = 4096;

impl Contents {
    fn zeros(len: usize) -> Self {
        Contents { len, pages: vec![None; len.div_ceil(PAGE)] }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn resize(&mut self, len: usize) {
        if len < self.len {
            let zeros = vec![0; (len.next_multiple_of(PAGE)).min(self.len) - len];
            self.write(len, &zeros);
        }
        self.pages.resize(len.div_ceil(PAGE), None);
        self.len = len;
    }

    /// The parts of a range that lie in one page each: the page, where in it, and where in the range.
    fn parts(at: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
        let pages = at / PAGE..(at + len).div_ceil(PAGE);
        pages.map(move |page| {
            let (start, end) = (at.max(page * PAGE), (at + len).min((page + 1) * PAGE));
            (page, start - page * PAGE..end - page * PAGE, start - at..end - at)
        })
    }

    fn read(&self, at: usize, buffer: &mut [u8]) {
        assert!(at + buffer.len() <= self.len);
        for (page, in_page, in_buffer) in Self::parts(at, buffer.len()) {
            match &self.pages[page] {
                Some(bytes) => buffer[in_buffer].copy_from_slice(&bytes[in_page]),
                None => buffer[in_buffer].fill(0),
            }
        }
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.len);
        for (page, in_page, in_data) in Self::parts(at, data.len()) {
            let bytes = self.pages[page].get_or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(bytes)[in_page].copy_from_slice(&data[in_data]);
        }
    }

    fn to_vec(&self) -> Vec<u8> {
        // Zeros that nobody writes take no memory.
        let mut all = vec![0; self.len];
        for (bytes, page) in all.chunks_mut(PAGE).zip(&self.pages) {
            if let Some(page) = page {
                bytes.copy_from_slice(&page[..bytes.len()]);
            }
        }
        all
    }
}

/// What an operation is up against.
enum Fate {
    Succeeds,
    Fails,
    Dies,
    Dead,
}

impl State {
    fn fate(&mut self) -> Fate {
        let operation = self.operations;
        self.operations += 1;
        match operation.cmp(&self.power_cut_at) {
            std::cmp::Ordering::Greater => Fate::Dead,
            std::cmp::Ordering::Equal => Fate::Dies,
            _ if self.failure_in > 0 && self.random.below(self.failure_in) == 0 => Fate::Fails,
            _ => Fate::Succeeds,
        }
    }
}

/// An open file of the disk.
pub struct SimulatedFile {
    disk: SimulatedDisk,
    file: usize,
}

fn failed() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Backing for SimulatedFile {
    fn len(&self) -> u64 {
        self.disk.0.lock().unwrap().files[self.file].live.len() as u64
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let state = self.disk.0.lock().unwrap();
        if state.operations > state.power_cut_at {
            return Err(failed());
        }
        let live = &state.files[self.file].live;
        let start = (offset as usize).min(live.len());
        let bytes = buffer.len().min(live.len() - start);
        live.read(start, &mut buffer[..bytes]);
        Ok(bytes)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.disk.0.lock().unwrap();
        let fate = state.fate();
        let State { files, random, .. } = &mut *state;
        let file = &mut files[self.file];
        assert!(offset as usize + data.len() <= file.live.len(), "a write behind the end");
        match fate {
            Fate::Succeeds => file.write(offset as usize, data, || true),
            Fate::Fails | Fate::Dies => {
                file.write(offset as usize, data, || random.below(2) == 0);
                return Err(failed());
            }
            Fate::Dead => return Err(failed()),
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut state = self.disk.0.lock().unwrap();
        let mut fate = state.fate();
        if state.failing_flushes > 0 {
            state.failing_flushes -= 1;
            fate = Fate::Fails;
        }
        let State { files, random, .. } = &mut *state;
        match fate {
            Fate::Succeeds => files[self.file].flush(),
            Fate::Fails => {
                files[self.file].fail_flush(random);
                return Err(failed());
            }
            // What had not landed by then is decided by the power cut.
            Fate::Dies | Fate::Dead => return Err(failed()),
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock().unwrap();
        match state.fate() {
            Fate::Succeeds => state.files[self.file].live.resize(len as usize),
            _ => return Err(failed()),
        }
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let mut state = self.disk.0.lock().unwrap();
        let fate = state.fate();
        state.discarded_bytes += range.end - range.start;
        let State { files, random, .. } = &mut *state;
        let (file, range) = (&mut files[self.file], range.start as usize..range.end as usize);
        match fate {
            Fate::Succeeds => file.discard(range, || true),
            Fate::Fails | Fate::Dies => {
                file.discard(range, || random.below(2) == 0);
                return Err(failed());
            }
            Fate::Dead => return Err(failed()),
        }
        Ok(())
    }

    fn describe(&self) -> String {
        format!("file {} of the simulated disk", self.file)
    }
}
