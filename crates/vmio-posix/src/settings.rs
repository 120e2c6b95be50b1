//! The options of `vmio run`, which it passes on in the environment.

use std::env;
use std::ffi::{CStr, OsStr, OsString};
use std::fmt;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{CWD, readlinkat_raw};
use vmio::Engine;

/// The options of `vmio run`. docs/guides/run.md lists the variables.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The cache for mapped files; none if mappings are not served.
    pub(crate) cache: Option<CacheSettings>,
    /// The promise of reads and writes; none if only calls on mapped files are served.
    pub(crate) mode: Option<Mode>,
    /// With a mode, the memory of the frames for files; none if the kernel's page cache has the bytes.
    pub(crate) frames_bytes: Option<u64>,
    /// With a mode, the bytes written to 2 MiB of a file without a sync before stores replace writes.
    pub(crate) stores_after_bytes: u32,
    /// The length of each operation log.
    pub(crate) log_bytes: u64,
    /// Whether an open of a file that another process has a lease on fails instead of waiting.
    refuses_shared: bool,
    /// The folders whose files are served: canonical paths.
    pub(crate) under: Vec<PathBuf>,
    /// Whether a mapping for stores gets space on the disk first.
    pub(crate) preallocates: bool,
    /// Whether a program that stores to a mapping waits while its disk is full.
    pub(crate) waits_for_space: bool,
    /// Whether to refuse programs that would run without vmio.
    pub(crate) strict_coverage: bool,
    /// Whether messages say which files are served, which are not, and why.
    pub(crate) is_verbose: bool,
    /// The form of the report at the end; none for no report.
    pub(crate) report: Option<ReportForm>,
}

/// A store that faults, with its share of a sync, takes about as long as four writes.
const STORES_AFTER_BYTES: u32 = 8 << 20;

/// The longest path that the kernel returns.
const PATH_BYTES: usize = 4096;
/// SplitFS's default.
const LOG_BYTES: u64 = 128 << 20;

/// The cache of each process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CacheSettings {
    /// Its memory.
    pub(crate) bytes: u64,
    /// The engine; none for the kernel module if it is available, else the managed engine.
    pub(crate) engine: Option<Engine>,
}

/// SplitFS's modes (thesis §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Linux's own promise.
    Posix,
    /// Each call is durable when it returns.
    Sync,
    /// Each call is durable and atomic when it returns.
    Strict,
}

/// How statistics are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportForm {
    /// Text for people.
    Text,
    /// An object in one line.
    Json,
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Mode::Posix => "posix",
            Mode::Sync => "sync",
            Mode::Strict => "strict",
        })
    }
}

impl Mode {
    fn named(name: &str) -> Option<Self> {
        match name {
            "posix" => Some(Mode::Posix),
            "sync" => Some(Mode::Sync),
            "strict" => Some(Mode::Strict),
            _ => None,
        }
    }
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();

impl Settings {
    /// The settings of this process; none if `vmio run` did not start it.
    pub(crate) fn of_this_process() -> Option<&'static Settings> {
        SETTINGS.get_or_init(|| Settings::read(|name| env::var_os(name))).as_ref()
    }

    /// Whether an open fails that would wait for another process.
    pub(crate) fn refuse_shared() -> bool {
        Self::of_this_process().is_some_and(|settings| settings.refuses_shared)
    }

    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Option<Settings> {
        let mode = match variable("VMIO_RUN_MODE") {
            Some(mode) => Some(Mode::named(mode.to_str()?)?),
            None => None,
        };
        let cache_bytes = match variable("VMIO_RUN_CACHE") {
            Some(bytes) => Some(bytes.to_str()?.parse().ok()?),
            None => None,
        };
        let cache = match cache_bytes.filter(|_| mode.is_none()) {
            Some(bytes) => {
                let engine = match variable("VMIO_RUN_ENGINE")?.to_str()? {
                    "auto" => None,
                    "kernel" => Some(Engine::Kernel),
                    "reader-thread" => Some(Engine::ReaderThread),
                    "managed" => Some(Engine::Managed),
                    _ => return None,
                };
                Some(CacheSettings { bytes, engine })
            }
            None => None,
        };
        let frames_bytes = cache_bytes.filter(|_| mode.is_some());
        let stores_after_bytes = match variable("VMIO_RUN_STORES_AFTER") {
            Some(bytes) => bytes.to_str()?.parse().ok()?,
            None => STORES_AFTER_BYTES,
        };
        let log_bytes = match variable("VMIO_RUN_LOG_BYTES") {
            Some(bytes) => bytes.to_str()?.parse().ok()?,
            None => LOG_BYTES,
        };
        let refuses_shared = match variable("VMIO_RUN_WHEN_SHARED") {
            Some(what) if what == "refuse" => true,
            Some(what) if what == "wait" => false,
            Some(_) => return None,
            None => false,
        };
        let under = env::split_paths(&variable("VMIO_RUN_UNDER")?).collect();
        let waits_for_space = match variable("VMIO_RUN_ON_FULL") {
            Some(what) if what == "wait" => true,
            Some(what) if what == "fail" => false,
            Some(_) => return None,
            None => false,
        };
        let preallocates = variable("VMIO_RUN_PREALLOCATE").is_some();
        let strict_coverage = variable("VMIO_RUN_STRICT_COVERAGE").is_some();
        let is_verbose = variable("VMIO_RUN_VERBOSE").is_some();
        let report = variable("VMIO_RUN_STATS").map(|form| match form.to_str() {
            Some("json") => ReportForm::Json,
            _ => ReportForm::Text,
        });
        Some(Settings {
            cache,
            mode,
            frames_bytes,
            stores_after_bytes,
            log_bytes,
            refuses_shared,
            under,
            preallocates,
            waits_for_space,
            strict_coverage,
            is_verbose,
            report,
        })
    }

    /// The path of an open file, if it lies under one of the folders.
    pub(crate) fn path_under(&self, fd: BorrowedFd<'_>) -> Option<PathBuf> {
        Self::with_path(fd, |path| self.covers(path).then(|| path.to_owned())).flatten()
    }

    /// Whether an open file lies under one of the folders. Nothing is allocated.
    pub(crate) fn covers_open(&self, fd: BorrowedFd<'_>) -> bool {
        Self::with_path(fd, |path| self.covers(path)).unwrap_or(false)
    }

    /// The path of an open file. Nothing is allocated.
    pub(crate) fn with_path<T>(fd: BorrowedFd<'_>, look: impl FnOnce(&Path) -> T) -> Option<T> {
        let mut buffer = [MaybeUninit::uninit(); PATH_BYTES];
        let (path, _) = Self::with_link(fd, |link| readlinkat_raw(CWD, link, &mut buffer)).ok()?;
        Some(look(Path::new(OsStr::from_bytes(path))))
    }

    /// The link in /proc that stands for an open file.
    pub(crate) fn with_link<T>(fd: BorrowedFd<'_>, look: impl FnOnce(&CStr) -> T) -> T {
        let mut buffer = [0; 32];
        // The buffer is long enough for any number.
        let _ = write!(&mut buffer[..], "/proc/self/fd/{}", fd.as_raw_fd());
        look(CStr::from_bytes_until_nul(&buffer).unwrap_or_default())
    }

    fn covers(&self, path: &Path) -> bool {
        self.under.iter().any(|folder| path.starts_with(folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a whole environment in which one variable is replaced.
    fn read_but(name: &str, value: Option<&str>) -> Option<Settings> {
        let all = [
            ("VMIO_RUN_CACHE", "8388608"),
            ("VMIO_RUN_ENGINE", "kernel"),
            ("VMIO_RUN_MODE", "posix"),
            ("VMIO_RUN_WHEN_SHARED", "refuse"),
            ("VMIO_RUN_UNDER", "/data:/more/data"),
            ("VMIO_RUN_STATS", "json"),
        ];
        Settings::read(|wanted| match wanted == name {
            true => value.map(OsString::from),
            false => all.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.into()),
        })
    }

    #[test]
    fn a_process_without_the_variables_has_none() {
        assert_eq!(Settings::read(|_| None), None);
        assert_eq!(read_but("VMIO_RUN_UNDER", None), None);
        assert_eq!(read_but("VMIO_RUN_CACHE", Some("much")), None);
        assert_eq!(read_but("VMIO_RUN_MODE", Some("lax")), None);
        assert_eq!(read_but("VMIO_RUN_WHEN_SHARED", Some("share")), None);
    }

    #[test]
    fn a_cache_is_that_of_the_mode_or_else_of_mappings() {
        let settings = read_but("", None).unwrap();
        assert_eq!((settings.mode, settings.cache, settings.frames_bytes), (Some(Mode::Posix), None, Some(8 << 20)));
        let settings = read_but("VMIO_RUN_CACHE", None).unwrap();
        assert_eq!((settings.cache, settings.frames_bytes), (None, None));
        let settings = read_but("VMIO_RUN_MODE", None).unwrap();
        assert_eq!(settings.cache, Some(CacheSettings { bytes: 8 << 20, engine: Some(Engine::Kernel) }));
        assert_eq!(settings.frames_bytes, None);
        let of_mappings = |engine: Option<&str>| {
            let variable = |name: &str| match name {
                "VMIO_RUN_CACHE" => Some("1".into()),
                "VMIO_RUN_UNDER" => Some("/data".into()),
                "VMIO_RUN_ENGINE" => engine.map(OsString::from),
                _ => None,
            };
            Settings::read(variable)
        };
        assert!(of_mappings(None).is_none() && of_mappings(Some("sigbus")).is_none());
        assert!(of_mappings(Some("managed")).is_some());
    }

    #[test]
    fn folders_cover_what_lies_in_them_and_not_what_only_begins_so() {
        let settings = read_but("", None).unwrap();
        assert_eq!(settings.stores_after_bytes, STORES_AFTER_BYTES);
        assert_eq!(
            read_but("VMIO_RUN_STORES_AFTER", None).map(|settings| settings.stores_after_bytes),
            Some(STORES_AFTER_BYTES)
        );
        let refuses = |value| read_but("VMIO_RUN_WHEN_SHARED", value).map(|settings| settings.refuses_shared);
        assert_eq!([Some("refuse"), Some("wait"), None].map(refuses), [Some(true), Some(false), Some(false)]);
        assert_eq!((settings.is_verbose, settings.report), (false, Some(ReportForm::Json)));
        assert!(settings.covers(Path::new("/data/a")) && settings.covers(Path::new("/more/data/b/c")));
        assert!(!settings.covers(Path::new("/database/a")) && !settings.covers(Path::new("/more")));
    }
}
