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

use preloadable::variables::{self, Variables, WrongVariable};
use rustix::fs::{CWD, readlinkat_raw};
use vmio::Engine;

/// The options of `vmio run`. docs/guides/run.md lists the variables.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The cache for mapped files; none if mappings are not served.
    pub(crate) cache: Option<CacheSettings>,
    /// The promise of reads and writes; none if only calls on mapped files are served.
    pub(crate) mode: Option<Mode>,
    /// With a mode, the memory of the cache of leased files; none if Linux's page cache has their bytes.
    pub(crate) mode_cache_bytes: Option<u64>,
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
    /// Whether a thread of the kernel submits reads and writes.
    pub(crate) polls_submissions: bool,
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

static SETTINGS: OnceLock<Result<Option<Settings>, WrongVariable>> = OnceLock::new();

impl Settings {
    /// The settings of this process; none if `vmio run` did not start it.
    pub(crate) fn of_this_process() -> Option<&'static Settings> {
        Settings::checked().ok().flatten()
    }

    /// The same. A process whose variables are wrong must not go on: it would lack what it was promised.
    pub(crate) fn checked() -> Result<Option<&'static Settings>, &'static WrongVariable> {
        SETTINGS.get_or_init(|| Settings::read(|name| env::var_os(name))).as_ref().map(Option::as_ref)
    }

    /// Whether an open fails that would wait for another process.
    pub(crate) fn refuse_shared() -> bool {
        Self::of_this_process().is_some_and(|settings| settings.refuses_shared)
    }

    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Settings>, WrongVariable> {
        let Some(under) = variable(variables::UNDER) else { return Ok(None) };
        let given = Variables(variable);
        let mode = given.meaning(variables::MODE, Mode::named)?;
        let cache_bytes: Option<u64> = given.number(variables::CACHE)?;
        let cache = match cache_bytes.filter(|_| mode.is_none()) {
            Some(bytes) => {
                let engine = given.meaning(variables::ENGINE, |engine| match engine {
                    "auto" => Some(None),
                    "kernel" => Some(Some(Engine::Kernel)),
                    "reader-thread" => Some(Some(Engine::ReaderThread)),
                    "managed" => Some(Some(Engine::Managed)),
                    "ring0" => Some(Some(Engine::Ring0)),
                    _ => None,
                })?;
                let engine = engine.ok_or(WrongVariable::missing(variables::ENGINE))?;
                Some(CacheSettings { bytes, engine, polls_submissions: given.is_set(variables::POLL_SUBMISSIONS) })
            }
            None => None,
        };
        let refuses_shared = given.meaning(variables::WHEN_SHARED, |what| match what {
            "refuse" => Some(true),
            "wait" => Some(false),
            _ => None,
        })?;
        let waits_for_space = given.meaning(variables::ON_FULL, |what| match what {
            "wait" => Some(true),
            "fail" => Some(false),
            _ => None,
        })?;
        let report = given.meaning(variables::STATS, |form| match form {
            "json" => Some(ReportForm::Json),
            "text" => Some(ReportForm::Text),
            _ => None,
        })?;
        Ok(Some(Settings {
            cache,
            mode,
            mode_cache_bytes: cache_bytes.filter(|_| mode.is_some()),
            stores_after_bytes: given.number(variables::STORES_AFTER)?.unwrap_or(STORES_AFTER_BYTES),
            log_bytes: given.number(variables::LOG_BYTES)?.unwrap_or(LOG_BYTES),
            refuses_shared: refuses_shared.unwrap_or(false),
            under: env::split_paths(&under).collect(),
            preallocates: given.is_set(variables::PREALLOCATE),
            waits_for_space: waits_for_space.unwrap_or(false),
            strict_coverage: given.is_set(variables::STRICT_COVERAGE),
            is_verbose: given.is_set(variables::VERBOSE),
            report,
        }))
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
    fn read_but(name: &str, value: Option<&str>) -> Result<Option<Settings>, WrongVariable> {
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

    fn settings_but(name: &str, value: Option<&str>) -> Settings {
        read_but(name, value).unwrap().unwrap()
    }

    #[test]
    fn a_process_without_the_folders_has_none() {
        assert_eq!(Settings::read(|_| None), Ok(None));
        assert_eq!(read_but("VMIO_RUN_UNDER", None), Ok(None));
    }

    #[test]
    fn a_wrong_value_is_named() {
        for (name, value) in [
            ("VMIO_RUN_CACHE", "much"),
            ("VMIO_RUN_MODE", "lax"),
            ("VMIO_RUN_WHEN_SHARED", "share"),
            ("VMIO_RUN_LOG_BYTES", "-1"),
            ("VMIO_RUN_STORES_AFTER", ""),
            ("VMIO_RUN_ON_FULL", "panic"),
            ("VMIO_RUN_STATS", "xml"),
        ] {
            let wrong = read_but(name, Some(value)).unwrap_err();
            assert_eq!(wrong.to_string(), format!("{name} has no such value as {value}"));
        }
    }

    #[test]
    fn a_cache_is_that_of_the_mode_or_else_of_mappings() {
        let settings = settings_but("", None);
        assert_eq!(
            (settings.mode, settings.cache, settings.mode_cache_bytes),
            (Some(Mode::Posix), None, Some(8 << 20))
        );
        let settings = settings_but("VMIO_RUN_CACHE", None);
        assert_eq!((settings.cache, settings.mode_cache_bytes), (None, None));
        let settings = settings_but("VMIO_RUN_MODE", None);
        assert_eq!(
            settings.cache,
            Some(CacheSettings { bytes: 8 << 20, engine: Some(Engine::Kernel), polls_submissions: false })
        );
        assert_eq!(settings.mode_cache_bytes, None);
        let of_mappings = |engine: Option<&str>| {
            let variable = |name: &str| match name {
                "VMIO_RUN_CACHE" => Some("1".into()),
                "VMIO_RUN_UNDER" => Some("/data".into()),
                "VMIO_RUN_ENGINE" => engine.map(OsString::from),
                _ => None,
            };
            Settings::read(variable)
        };
        assert_eq!(of_mappings(None).unwrap_err().to_string(), "VMIO_RUN_ENGINE is missing");
        assert!(of_mappings(Some("sigbus")).is_err());
        assert!(of_mappings(Some("managed")).is_ok_and(|settings| settings.is_some()));
    }

    #[test]
    fn folders_cover_what_lies_in_them_and_not_what_only_begins_so() {
        let settings = settings_but("", None);
        assert_eq!(settings.stores_after_bytes, STORES_AFTER_BYTES);
        let refuses = |value| settings_but("VMIO_RUN_WHEN_SHARED", value).refuses_shared;
        assert_eq!([Some("refuse"), Some("wait"), None].map(refuses), [true, false, false]);
        assert_eq!((settings.is_verbose, settings.report), (false, Some(ReportForm::Json)));
        assert!(settings.covers(Path::new("/data/a")) && settings.covers(Path::new("/more/data/b/c")));
        assert!(!settings.covers(Path::new("/database/a")) && !settings.covers(Path::new("/more")));
    }
}
