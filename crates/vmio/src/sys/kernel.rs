//! Features of newer kernels that older ones lack. vmio tries each, and has a substitute for it.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// A feature of the kernel that vmio uses if it is there, unless [`crate::CacheBuilder::without`] says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelFeature {
    /// process_madvise(MADV_DONTNEED) on the calling process.
    BatchedUnmap,
    /// Moving pages from one range to another (UFFDIO_MOVE).
    MovePages,
    /// Stores noted by the kernel (UFFD_FEATURE_WP_ASYNC).
    WpAsync,
    /// Asking which pages were stored to (PAGEMAP_SCAN).
    PagemapScan,
    /// Write-protection of shared memory (UFFD_FEATURE_WP_HUGETLBFS_SHMEM).
    ShmemWp,
    /// Unmapping pages that are locked in memory (MADV_DONTNEED_LOCKED).
    UnmapLocked,
    /// Many reads under way from one thread (io_uring).
    IoUring,
}

/// The texts about a feature.
struct Facts {
    name: &'static str,
    since: &'static str,
    used_for: &'static str,
    in_its_place: &'static str,
}

const ANONYMOUS_FRAMES: &str =
    "anonymous frames: the first store to a page that was read traps (24 µs beside a second thread, with them 1 µs)";

impl KernelFeature {
    /// All features, those of the newest kernel first.
    pub const ALL: [KernelFeature; 7] = [
        KernelFeature::BatchedUnmap,
        KernelFeature::MovePages,
        KernelFeature::WpAsync,
        KernelFeature::PagemapScan,
        KernelFeature::ShmemWp,
        KernelFeature::UnmapLocked,
        KernelFeature::IoUring,
    ];

    fn facts(self) -> Facts {
        match self {
            KernelFeature::BatchedUnmap => Facts {
                name: "batched-unmap",
                since: "6.13",
                used_for: "evicting the coldest pages with one TLB shootdown for hundreds, wherever they lie",
                in_its_place: "spans of 2 MiB are evicted as a whole, one TLB shootdown each: pages in use that lie \
                               beside idle ones are read again",
            },
            KernelFeature::MovePages => Facts {
                name: "move-pages",
                since: "6.8",
                used_for: "scans by huge pages (FrameHint::Stream and Dynamic), which come in by one step each",
                in_its_place: "scans read ahead by small pages, each of which is copied",
            },
            KernelFeature::WpAsync => Facts {
                name: "wp-async",
                since: "6.7",
                used_for: "memfd frames (FrameHint::Mixed), whose first store does not trap",
                in_its_place: ANONYMOUS_FRAMES,
            },
            KernelFeature::PagemapScan => Facts {
                name: "pagemap-scan",
                since: "6.7",
                used_for: "memfd frames: finding out which pages were stored to",
                in_its_place: ANONYMOUS_FRAMES,
            },
            KernelFeature::ShmemWp => Facts {
                name: "shmem-wp",
                since: "5.19",
                used_for: "memfd frames: write-protecting them",
                in_its_place: ANONYMOUS_FRAMES,
            },
            KernelFeature::UnmapLocked => Facts {
                name: "unmap-locked",
                since: "5.18",
                used_for: "evicting from a cache that is locked in memory",
                in_its_place: "the cache is not locked, so the kernel may swap it out; nor may the program use mlockall",
            },
            KernelFeature::IoUring => Facts {
                name: "io-uring",
                since: "5.11",
                used_for: "asynchronous misses (Mapping::fetch and prefetch): hundreds of reads under way from a thread a \
                           core; loads and stores that miss never use it",
                in_its_place: "eight threads that read, one page or run of pages each at a time",
            },
        }
    }

    /// Returns the name of the feature in options and output, such as `batched-unmap`.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Returns the first version of Linux with the feature.
    pub fn since(self) -> &'static str {
        self.facts().since
    }

    /// Returns the use that vmio makes of the feature.
    pub fn used_for(self) -> &'static str {
        self.facts().used_for
    }

    /// Returns vmio's substitute for the feature, and its cost.
    pub fn in_its_place(self) -> &'static str {
        self.facts().in_its_place
    }
}

impl fmt::Display for KernelFeature {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for KernelFeature {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        KernelFeature::ALL.into_iter().find(|feature| feature.name() == text).ok_or_else(|| {
            let names = KernelFeature::ALL.map(KernelFeature::name).join(", ");
            format!("{text:?} is not a feature of the kernel that vmio can do without; there are {names}")
        })
    }
}

/// The features that vmio may use, as far as the kernel has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelFeatures(u32);

impl KernelFeatures {
    /// All features.
    pub(crate) const ALL: KernelFeatures = KernelFeatures(u32::MAX);

    /// Removes a feature.
    pub(crate) fn without(self, feature: KernelFeature) -> Self {
        KernelFeatures(self.0 & !(1 << feature as u32))
    }

    /// Whether a feature may be used.
    pub(crate) fn allow(self, feature: KernelFeature) -> bool {
        self.0 >> feature as u32 & 1 == 1
    }
}

/// Whether a miss reads a huge page as a whole, in a mapping of a file that is advised to have huge pages: Linux 5.18.
pub(crate) fn reads_by_huge_pages() -> bool {
    static READS: OnceLock<bool> = OnceLock::new();
    *READS.get_or_init(|| {
        let name = rustix::system::uname();
        let mut numbers = name.release().to_bytes().split(|byte| !byte.is_ascii_digit()).map(|digits| {
            std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u32>().ok())
        });
        matches!((numbers.next().flatten(), numbers.next().flatten()), (Some(major), Some(minor)) if (major, minor) >= (5, 18))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_is_parsed_by_its_name_and_declined_alone() {
        for feature in KernelFeature::ALL {
            assert_eq!(feature.to_string().parse(), Ok(feature));
            let without = KernelFeatures::ALL.without(feature);
            let declined: Vec<_> = KernelFeature::ALL.into_iter().filter(|other| !without.allow(*other)).collect();
            assert_eq!(declined, [feature]);
        }
        assert!("io_uring".parse::<KernelFeature>().unwrap_err().contains("batched-unmap, move-pages"));
    }
}
