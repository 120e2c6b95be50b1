//! Programs that this one starts, or becomes, and that vmio does not see: the user is told, or they are refused (`--strict-coverage`).
//!
//! A child between vfork and exec comes here, too: nothing is allocated.

use std::ffi::{CStr, OsStr};
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use preloadable::{FRONT_BYTES, Program, Unseen};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, fstat, openat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::getpid;

use crate::apart;
use crate::messages;
use crate::settings::{ReportForm, Settings};

/// Linux follows so many scripts that are the interpreters of others.
const SCRIPTS_MAX: usize = 5;
/// The longest path.
const PATH_BYTES: usize = 4096;
/// Programs that can be told of once; others are told of again.
const TOLD_MAX: usize = 512;

/// How a call names the program.
#[derive(Clone, Copy)]
pub(crate) enum Named<'a> {
    /// By a path from a folder.
    At(BorrowedFd<'a>, &'a CStr),
    /// By a name that is looked for in `PATH`, or a path.
    Searched(&'a CStr),
    /// By an open file.
    Open(BorrowedFd<'a>),
}

/// Those that were told of, by this process or one that it has forked.
struct Told([AtomicU64; TOLD_MAX]);

static TOLD: AtomicPtr<Told> = AtomicPtr::new(ptr::null_mut());

/// The library has been loaded.
pub(crate) fn start() {
    if Settings::of_this_process().is_none() {
        return;
    }
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: the kernel chooses the place.
    if let Ok(told) = unsafe { mmap_anonymous(ptr::null_mut(), size_of::<Told>(), protection, flags) } {
        TOLD.store(told.cast(), Ordering::Release);
    }
}

impl Told {
    /// Whether the program with this number has not been told of.
    fn is_new(&self, number: u64) -> bool {
        for place in &self.0 {
            match place.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(found) if found == number => return false,
                Err(_) => {}
            }
        }
        true
    }
}

/// Before an exec or a spawn.
///
/// # Errors
/// EACCES if the program is not seen, and the user wants none such.
pub(crate) fn check(named: Named<'_>) -> Result<(), Errno> {
    let Some(settings) = Settings::of_this_process() else { return Ok(()) };
    // Its stack has room for the paths, which that of a handler may not have.
    apart::run(|| check_apart(settings, named)).unwrap_or(Ok(()))
}

fn check_apart(settings: &Settings, named: Named<'_>) -> Result<(), Errno> {
    match named {
        Named::At(folder, path) => told(settings, path_of(path), look(|| open(folder, path))),
        Named::Open(fd) => Settings::with_path(fd, |path| told(settings, path, look(|| Some(fd)))).unwrap_or(Ok(())),
        Named::Searched(path) if path.to_bytes().contains(&b'/') => check_apart(settings, Named::At(CWD, path)),
        Named::Searched(name) => {
            // SAFETY: the program does not change its environment while it starts another.
            let list = unsafe { libc::getenv(c"PATH".as_ptr()).as_ref().map(|list| CStr::from_ptr(list)) };
            let mut buffer = [0; PATH_BYTES];
            for folder in list.unwrap_or_default().to_bytes().split(|byte| *byte == b':') {
                let parts = [folder, if folder.is_empty() { b"" } else { b"/" }, name.to_bytes()];
                if let Some(path) = joined(&parts, &mut buffer)
                    && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
                {
                    return check_apart(settings, Named::At(CWD, path));
                }
            }
            Ok(())
        }
    }
}

fn joined<'a>(parts: &[&[u8]], buffer: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let mut rest = &mut buffer[..];
    parts.iter().chain(&[&b"\0"[..]]).try_for_each(|part| rest.write_all(part)).ok()?;
    CStr::from_bytes_until_nul(buffer).ok()
}

/// In a thread of [`apart`], with whose end it is closed. Who may execute it, and not read it, is not told.
fn open(folder: BorrowedFd<'_>, path: &CStr) -> Option<BorrowedFd<'static>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat(folder, path, flags, Mode::empty()).ok()?;
    // SAFETY: nobody closes it in the thread.
    Some(unsafe { BorrowedFd::borrow_raw(file.into_raw_fd()) })
}

/// Why the program is not seen, or the one that runs it if it is a script, and a number by which it can be told from others.
fn look<'a>(open_first: impl FnOnce() -> Option<BorrowedFd<'a>>) -> Option<(Unseen, u64)> {
    let (mut front, mut interpreter) = ([0; FRONT_BYTES], [0; PATH_BYTES]);
    let mut file = open_first()?;
    for _ in 0..SCRIPTS_MAX {
        match Program::of(file, &mut front).ok()? {
            Program::Unseen(why) => {
                let stat = fstat(file).ok()?;
                return Some((why, (stat.st_dev << 40) ^ stat.st_ino ^ 1 << 63));
            }
            Program::Script(script) => {
                file = open(CWD, joined(&[script.interpreter.as_bytes()], &mut interpreter)?)?;
            }
            Program::Seen | Program::Unknown => return None,
        }
    }
    None
}

fn path_of(path: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(path.to_bytes()))
}

fn told(settings: &Settings, path: &Path, unseen: Option<(Unseen, u64)>) -> Result<(), Errno> {
    let Some((why, number)) = unseen else { return Ok(()) };
    // SAFETY: it is never unmapped.
    let is_new = unsafe { TOLD.load(Ordering::Acquire).as_ref() }.is_none_or(|told| told.is_new(number));
    let refused = settings.strict_coverage;
    if refused || is_new {
        let what = if refused { "is refused (--strict-coverage)" } else { "runs without vmio" };
        messages::say(format_args!("{} {what}: {why}", path.display()));
    }
    match settings.report {
        _ if refused => {}
        Some(ReportForm::Text) => {
            messages::say(format_args!("process {}, not served: {}", getpid().as_raw_nonzero(), path.display()));
        }
        Some(ReportForm::Json) => messages::write_formatted(format_args!("{}\n", Report { path, why })),
        None => {}
    }
    if refused { Err(Errno::ACCESS) } else { Ok(()) }
}

/// An object in one line, of a program that is not served.
struct Report<'a> {
    path: &'a Path,
    why: Unseen,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { path, why } = self;
        write!(f, "{{\"process\":{},\"served\":false,\"program\":\"", getpid().as_raw_nonzero())?;
        for character in path.as_os_str().as_bytes().utf8_chunks().flat_map(|chunk| chunk.valid().chars()) {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                '\0'..' ' => write!(f, "\\u{:04x}", u32::from(character))?,
                _ => f.write_char(character)?,
            }
        }
        write!(f, "\",\"why\":\"{why}\"}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_is_told_of_once() {
        let told = Told([const { AtomicU64::new(0) }; TOLD_MAX]);
        assert!((1..=TOLD_MAX as u64).all(|number| told.is_new(number) && !told.is_new(number)));
        assert!(told.is_new(1000) && told.is_new(1000), "there is no room to remember it");
    }

    #[test]
    fn a_report_is_json_whatever_the_path() {
        let path = Path::new(OsStr::from_bytes(b"/a \"b\"\\\n\xff\xc3\xa4"));
        let report: serde_json::Value =
            serde_json::from_str(&Report { path, why: Unseen::Static }.to_string()).unwrap();
        assert_eq!(report["program"], "/a \"b\"\\\n\u{e4}");
        assert_eq!((&report["served"], report["process"].as_u64()), (&false.into(), Some(std::process::id().into())));
    }
}
