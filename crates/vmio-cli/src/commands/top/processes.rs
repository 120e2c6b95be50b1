//! The processes that the dashboard watches: one, or all of this user that have caches.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use vmio::telemetry::{ReadError, Reader};

use super::view::View;
use crate::commands::stat::{Sample, command_name};

/// How often the dashboard looks for new processes.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);

/// The watched processes, with the last sample of each.
pub struct Processes {
    watched: Vec<Watched>,
    /// The process that the user asked for, if any.
    only: Option<u32>,
    /// Its description, for after its end.
    ended: Option<String>,
    searched: Instant,
}

struct Watched {
    reader: Reader,
    command: String,
    last: Sample,
}

impl Watched {
    /// `None` if it has ended, or has no cache.
    fn open(process_id: u32) -> anyhow::Result<Option<Self>> {
        let reader = Reader::open(process_id)?;
        let command = command_name(process_id);
        let last = Sample::take(&reader)?.filter(|sample| !sample.caches.is_empty());
        Ok(last.map(|last| Self { reader, command, last }))
    }

    fn describe(&self) -> String {
        format!("process {} ({})", self.reader.process_id(), self.command)
    }
}

impl Processes {
    /// The process that the user asked for, or all processes with caches; fails if there is none.
    pub fn find(only: Option<u32>) -> anyhow::Result<Self> {
        let watched = match only {
            Some(id) => match Watched::open(id)? {
                Some(process) => vec![process],
                None => bail!("process {id} ({}) does not use vmio: it has no open cache", command_name(id)),
            },
            None => Vec::new(),
        };
        let mut processes = Self { watched, only, ended: None, searched: Instant::now() };
        if only.is_none() {
            processes.search()?;
            if processes.watched.is_empty() {
                bail!("no process of this user has an open cache: give the PID of another user's process");
            }
        }
        Ok(processes)
    }

    /// Takes a sample of every process into the view.
    pub fn update(&mut self, view: &mut View) -> anyhow::Result<()> {
        let mut index = 0;
        while let Some(process) = self.watched.get_mut(index) {
            let id = process.reader.process_id();
            let sample = match Sample::take(&process.reader) {
                // The other processes are still worth watching.
                Err(error) if self.only.is_none() => Err(error.to_string()),
                sample => sample?.ok_or_else(|| "it has ended".to_owned()),
            };
            match sample {
                Ok(sample) => {
                    view.update(id, &process.command, sample.since(&process.last));
                    process.last = sample;
                    index += 1;
                }
                Err(why) => {
                    let gone = self.watched.remove(index);
                    view.update(id, &gone.command, std::iter::empty());
                    view.set_notice(format!("{}: {why}", gone.describe()));
                    self.ended = Some(gone.describe());
                }
            }
        }
        if self.only.is_none() && self.searched.elapsed() >= SEARCH_INTERVAL {
            self.search()?;
        }
        Ok(())
    }

    /// The process that the user asked for, if an update has found that it has ended.
    pub fn ended_process(&self) -> Option<&str> {
        self.only.and(self.ended.as_deref())
    }

    /// Whether that process has ended by now.
    pub fn has_ended_by_now(&self) -> Result<bool, ReadError> {
        match (self.only, self.watched.first()) {
            (Some(_), Some(process)) => process.reader.wait_for_end(Duration::ZERO),
            _ => Ok(self.ended_process().is_some()),
        }
    }

    /// Finds further processes of this user. Skips unreadable ones.
    fn search(&mut self) -> anyhow::Result<()> {
        self.searched = Instant::now();
        for id in own_processes().context("cannot list the processes in /proc")? {
            if self.watched.iter().all(|process| process.reader.process_id() != id)
                && let Ok(Some(process)) = Watched::open(id)
            {
                self.watched.push(process);
            }
        }
        Ok(())
    }
}

fn own_processes() -> io::Result<Vec<u32>> {
    let user = fs::metadata("/proc/self")?.uid();
    let entries = fs::read_dir("/proc")?.filter_map(Result::ok);
    let own = entries.filter(|entry| entry.metadata().is_ok_and(|metadata| metadata.uid() == user));
    Ok(own.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}
