//! Filebench's four profiles: their operations and figures, as its workloads of these names have them.

use rand::Rng;
use rand::rngs::SmallRng;

/// An operation. A file is chosen by [`Step::Create`] and [`Step::Open`], and the steps that follow are about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a file that is not there.
    Create,
    /// Opens one that is there, for loads and stores.
    Open,
    /// Writes the bytes of a new file.
    WriteWhole,
    ReadWhole,
    /// Appends a random number of bytes.
    Append,
    /// The same to the log that all threads have.
    AppendLog,
    Fsync,
    Close,
    /// Removes a file that is there.
    Delete,
    Stat,
}

use Step::{Append, AppendLog, Close, Create, Delete, Fsync, Open, ReadWhole, Stat, WriteWhole};

/// A mix of operations.
pub struct Profile {
    pub name: &'static str,
    /// The mean of the sizes of files.
    pub mean_bytes: f64,
    /// How many of a hundred files are there at first.
    pub there_percent: u32,
    /// How many files a folder has.
    pub files_a_folder: u32,
    /// What a thread does over and over.
    pub steps: &'static [Step],
}

/// The most bytes of an append.
pub const APPEND_BYTES_MAX: usize = 16 << 10;

pub const FILESERVER: Profile = Profile {
    name: "fileserver",
    mean_bytes: 131_072.0,
    there_percent: 80,
    files_a_folder: 20,
    steps: &[Create, WriteWhole, Close, Open, Append, Close, Open, ReadWhole, Close, Delete, Stat],
};

pub const VARMAIL: Profile = Profile {
    name: "varmail",
    mean_bytes: 16_384.0,
    there_percent: 80,
    files_a_folder: 1_000_000,
    steps: &[Delete, Create, Append, Fsync, Close, Open, ReadWhole, Append, Fsync, Close, Open, ReadWhole, Close],
};

pub const WEBSERVER: Profile = Profile {
    name: "webserver",
    mean_bytes: 16_384.0,
    there_percent: 100,
    files_a_folder: 20,
    steps: &[
        Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open,
        ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole,
        Close, Open, ReadWhole, Close, AppendLog,
    ],
};

pub const WEBPROXY: Profile = Profile {
    name: "webproxy",
    mean_bytes: 16_384.0,
    there_percent: 80,
    files_a_folder: 1_000_000,
    steps: &[
        Delete, Create, Append, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open, ReadWhole, Close, Open,
        ReadWhole, Close, Open, ReadWhole, Close, AppendLog,
    ],
};

impl Profile {
    /// The size of a file: of a gamma distribution with shape 1.5, as filebench's `cvar` of sizes has it.
    pub fn size(&self, random: &mut SmallRng) -> usize {
        let mut uniform = || 1.0 - random.random::<f64>();
        // Shape 1 is an exponential, and shape 0.5 half the square of a normal.
        let exponential = -uniform().ln();
        let half_square = -uniform().ln() * (std::f64::consts::TAU * uniform()).cos().powi(2);
        ((exponential + half_square) * self.mean_bytes / 1.5) as usize
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn sizes_have_the_mean_and_the_shape() {
        let mut random = SmallRng::seed_from_u64(1);
        let sizes: Vec<f64> = (0..200_000).map(|_| VARMAIL.size(&mut random) as f64).collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        let variance = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / sizes.len() as f64;
        assert!((mean / 16_384.0 - 1.0).abs() < 0.02, "{mean}");
        // Of a gamma distribution: the square of the mean by the shape.
        assert!((variance / (16_384.0_f64.powi(2) / 1.5) - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn as_many_files_come_as_go() {
        for profile in [&FILESERVER, &VARMAIL, &WEBSERVER, &WEBPROXY] {
            let count = |step| profile.steps.iter().filter(|other| **other == step).count();
            assert_eq!(count(Create), count(Delete), "{}", profile.name);
            assert_eq!(count(Create) + count(Open), count(Close), "{}", profile.name);
        }
    }
}
