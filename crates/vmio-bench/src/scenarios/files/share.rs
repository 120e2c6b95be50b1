//! A thread's share of the files of a profile, and what it does with them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::profile::{APPEND_BYTES_MAX, Profile, Step};
use super::threads::{Done, together};

/// The bytes of a call, as filebench's `iosize`.
const CALL_BYTES: usize = 1 << 20;

/// The files that one thread alone uses, and the log.
struct Share {
    profile: &'static Profile,
    random: SmallRng,
    /// Those that are there, with their lengths, and those that are not.
    there: Vec<(PathBuf, u64)>,
    absent: Vec<PathBuf>,
    log: File,
    /// The file that is open, and its place among those that are there.
    open: Option<(File, usize)>,
    bytes: Vec<u8>,
    until: Duration,
}

impl Share {
    fn new(
        profile: &'static Profile,
        folder: &Path,
        (thread, threads): (u8, u8),
        files: u32,
        until: Duration,
    ) -> anyhow::Result<Share> {
        let log = OpenOptions::new().append(true).create(true).open(folder.join("log"))?;
        let mut share = Share {
            profile,
            random: SmallRng::seed_from_u64(thread.into()),
            there: Vec::new(),
            absent: Vec::new(),
            log,
            open: None,
            bytes: vec![0xA5; CALL_BYTES],
            until,
        };
        let of_thread = (0..files).filter(|number| number % u32::from(threads) == u32::from(thread));
        for (at, number) in of_thread.enumerate() {
            let inside = folder.join(format!("d{}", number / profile.files_a_folder));
            fs::create_dir_all(&inside)?;
            share.absent.push(inside.join(format!("f{number}")));
            if at as u32 % 100 < profile.there_percent {
                [Step::Create, Step::WriteWhole, Step::Close].into_iter().try_for_each(|step| share.take(step))?;
            }
        }
        Ok(share)
    }

    /// One that is there.
    fn any(&mut self) -> anyhow::Result<usize> {
        ensure!(!self.there.is_empty(), "no file is there");
        Ok(self.random.random_range(0..self.there.len()))
    }

    fn write(&mut self, mut bytes: usize) -> anyhow::Result<()> {
        let (file, at) = self.open.as_mut().context("no file is open")?;
        while bytes > 0 {
            let now = bytes.min(CALL_BYTES);
            file.write_all_at(&self.bytes[..now], self.there[*at].1)?;
            self.there[*at].1 += now as u64;
            bytes -= now;
        }
        Ok(())
    }

    fn read(&mut self) -> anyhow::Result<()> {
        let (file, at) = self.open.as_mut().context("no file is open")?;
        let mut there = 0;
        loop {
            match file.read(&mut self.bytes)? {
                0 => break,
                read => there += read as u64,
            }
        }
        let (path, length) = &self.there[*at];
        ensure!(there == *length, "{} has {there} bytes, and was written with {length}", path.display());
        Ok(())
    }

    fn append_bytes(&mut self) -> usize {
        self.random.random_range(1..=APPEND_BYTES_MAX)
    }

    fn take(&mut self, step: Step) -> anyhow::Result<()> {
        match step {
            Step::Create => {
                ensure!(!self.absent.is_empty(), "all files are there");
                let path = self.absent.swap_remove(self.random.random_range(0..self.absent.len()));
                let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
                self.open = Some((file, self.there.len()));
                self.there.push((path, 0));
            }
            Step::Open => {
                let at = self.any()?;
                let file = OpenOptions::new().read(true).write(true).open(&self.there[at].0)?;
                self.open = Some((file, at));
            }
            Step::WriteWhole => {
                let size = self.profile.size(&mut self.random);
                self.write(size)?;
            }
            Step::Append => {
                let bytes = self.append_bytes();
                self.write(bytes)?;
            }
            Step::ReadWhole => self.read()?,
            Step::AppendLog => {
                let bytes = self.append_bytes();
                let written = self.log.write(&self.bytes[..bytes])?;
                ensure!(written == bytes, "an append is cut short");
            }
            Step::Fsync => match &self.open {
                Some((file, _)) => file.sync_all()?,
                None => bail!("no file is open"),
            },
            Step::Close => self.open = None,
            Step::Delete => {
                let at = self.any()?;
                let (path, _) = self.there.swap_remove(at);
                fs::remove_file(&path)?;
                self.absent.push(path);
            }
            Step::Stat => {
                let at = self.any()?;
                let (path, length) = &self.there[at];
                ensure!(fs::metadata(path)?.len() == *length, "{} has another length", path.display());
            }
        }
        Ok(())
    }

    /// Goes on until its time has come.
    fn work(&mut self) -> anyhow::Result<u64> {
        let (began, mut ops) = (Instant::now(), 0);
        while began.elapsed() < self.until {
            self.profile.steps.iter().try_for_each(|step| self.take(*step))?;
            ops += self.profile.steps.len() as u64;
        }
        Ok(ops)
    }
}

/// Has threads work in a folder for this number of seconds.
pub fn run(profile: &'static Profile, folder: &Path, threads: u8, files: u32, secs: f64) -> anyhow::Result<Done> {
    let until = Duration::from_secs_f64(secs);
    together(threads, |thread| Share::new(profile, folder, (thread, threads), files, until), Share::work)
}

#[cfg(test)]
mod tests {
    use super::super::profile::{FILESERVER, VARMAIL, WEBPROXY, WEBSERVER};
    use super::*;

    #[test]
    fn each_profile_keeps_its_number_of_files() -> anyhow::Result<()> {
        for profile in [&FILESERVER, &VARMAIL, &WEBSERVER, &WEBPROXY] {
            let folder = tempfile::tempdir()?;
            run(profile, folder.path(), 2, 200, 0.05)?;
            let mut files = 0;
            for inside in fs::read_dir(folder.path())? {
                let inside = inside?.path();
                files += if inside.is_dir() { fs::read_dir(&inside)?.count() } else { 0 };
            }
            assert_eq!(files as u32, 2 * profile.there_percent, "{}", profile.name);
        }
        Ok(())
    }
}
