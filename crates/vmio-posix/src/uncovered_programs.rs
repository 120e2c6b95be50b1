//! Programs that this one starts or becomes and that vmio does not cover: a message names them, or, with `--strict-coverage`, the call
//! fails.
//!
//! A child between vfork and exec comes here, too, so nothing allocates.

use std::ffi::{CStr, OsStr, c_char};
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use libc::pid_t;
use preloadable::{FRONT_BYTES, Program, Uncovered, variables};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, fstat, openat, statat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::messages;
use crate::settings::{ReportForm, Settings};
use crate::unshared_fd_thread;

/// Linux follows at most this number of scripts that interpret each other.
const SCRIPTS_MAX: usize = 5;
/// The longest path.
const PATH_BYTES: usize = 4096;
/// Programs to remember; a message may name any others again.
const NAMED_MAX: usize = 512;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The environment of this process.
pub(crate) fn environment() -> *const *const c_char {
    // SAFETY: the program does not change it while it starts another.
    unsafe { environ }
}

/// How a call names the program.
#[derive(Clone, Copy)]
pub(crate) enum Named<'a> {
    /// By a path relative to a folder.
    At(BorrowedFd<'a>, &'a CStr),
    /// By a name to look up in `PATH`, or a path.
    Searched(&'a CStr),
    /// By an open file.
    Open(BorrowedFd<'a>),
}

/// The programs that messages have named, in this process or one that it has forked.
struct AlreadyNamed([AtomicU64; NAMED_MAX]);

static ALREADY_NAMED: AtomicPtr<AlreadyNamed> = AtomicPtr::new(ptr::null_mut());

/// The library that `vmio run` preloads.
const LIBRARY: &[u8] = b"libvmio_posix.so";
/// The folders in which the C library looks without PATH.
const DEFAULT_PATH: &CStr = c"/bin:/usr/bin";

/// Whether this process got the library by its environment.
static IS_PRELOADED: AtomicBool = AtomicBool::new(false);

/// Prepares the list of named programs, when the library is loaded.
pub(crate) fn start() {
    if Settings::of_this_process().is_none() {
        return;
    }
    // SAFETY: it is the C library's list.
    IS_PRELOADED.store(unsafe { preloads(environment()) }, Ordering::Relaxed);
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: the kernel chooses the place.
    if let Ok(named) = unsafe { mmap_anonymous(ptr::null_mut(), size_of::<AlreadyNamed>(), protection, flags) } {
        ALREADY_NAMED.store(named.cast(), Ordering::Release);
    }
}

impl AlreadyNamed {
    /// Whether no message has named the program with this number.
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

/// The reason why a program runs without vmio.
#[derive(Clone, Copy)]
pub(crate) enum Why {
    /// Because of its kind.
    Program(Uncovered),
    /// Because of its environment.
    Environment,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Program(why) => why.fmt(f),
            Why::Environment => f.write_str("its environment does not have LD_PRELOAD and VMIO_RUN_UNDER of vmio run"),
        }
    }
}

/// The result of examining a program.
#[derive(Clone, Copy)]
pub(crate) struct Examined {
    /// Whether there is a program that this user may execute.
    pub(crate) is_there: bool,
    pub(crate) why: Option<Why>,
}

/// Examines a program before an exec or a spawn, with the environment that the program will get.
///
/// # Errors
/// EACCES if the program is not covered, with `--strict-coverage`.
///
/// # Safety
/// The environment is null or a list of C strings that ends with null.
pub(crate) unsafe fn check(named: Named<'_>, environment: *const *const c_char) -> Result<Examined, Errno> {
    let unknown = Examined { is_there: true, why: None };
    let Some(settings) = Settings::of_this_process() else { return Ok(unknown) };
    // SAFETY: by the caller.
    let is_preloaded = !IS_PRELOADED.load(Ordering::Relaxed) || unsafe { preloads(environment) };
    // Its stack has space for the paths, which a signal handler's stack may not have.
    let outcome = unshared_fd_thread::run(|| {
        found(named, |path, file, is_there| {
            let why = match examine(file) {
                Some((why, number)) => Some((Why::Program(why), number)),
                None if is_there && !is_preloaded => {
                    file.and_then(number_of).map(|number| (Why::Environment, number ^ 1 << 62))
                }
                None => None,
            };
            name_or_refuse(settings, path, why)?;
            Ok(Examined { is_there, why: why.map(|(why, _)| why) })
        })
    });
    outcome.unwrap_or(Ok(unknown))
}

/// Reports, for `--stats`, a process that is, or is about to be, an uncovered program.
pub(crate) fn report(named: Named<'_>, examined: Examined, process: pid_t) {
    let form = Settings::of_this_process().and_then(|settings| settings.report);
    let Some((form, why)) = form.zip(examined.why) else { return };
    unshared_fd_thread::run(|| {
        found(named, |path, _, _| match form {
            ReportForm::Text => messages::say(format_args!("process {process}, not served: {}", path.display())),
            ReportForm::Json => messages::write_formatted(format_args!("{}\n", Report { process, path, why })),
        });
    });
}

/// Whether an environment makes the loader preload vmio, and names the folders.
///
/// # Safety
/// The pointer is null or a list of C strings that ends with null.
unsafe fn preloads(environment: *const *const c_char) -> bool {
    let (mut has_library, mut has_folders) = (false, false);
    let mut at = environment;
    // SAFETY: by the caller, here and below.
    while let Some(variable) = unsafe { at.as_ref() }.filter(|variable| !variable.is_null()) {
        // SAFETY: by the caller.
        let text = unsafe { CStr::from_ptr(*variable) }.to_bytes();
        if let Some(list) = text.strip_prefix(b"LD_PRELOAD=") {
            has_library |= list.split(|byte| b": \t\n".contains(byte)).any(|path| path.ends_with(LIBRARY));
        }
        has_folders |= text.strip_prefix(variables::UNDER.as_bytes()).is_some_and(|rest| rest.starts_with(b"="));
        // SAFETY: it does not end here.
        at = unsafe { at.add(1) };
    }
    has_library && has_folders
}

/// Finds a program, in a thread of [`unshared_fd_thread`]: its path, the file if it is readable, and whether this user may execute it.
fn found<T>(named: Named<'_>, mut act: impl FnMut(&Path, Option<BorrowedFd<'_>>, bool) -> T) -> T {
    match named {
        Named::At(folder, path) => {
            act(Path::new(OsStr::from_bytes(path.to_bytes())), open(folder, path), is_executable(folder, path))
        }
        // The descriptor may be open with O_PATH, by which nobody could read.
        Named::Open(fd) => {
            let (file, is_there) = Settings::with_link(fd, |link| (open(CWD, link), is_executable(CWD, link)));
            Settings::with_path(fd, |path| act(path, file, is_there))
                .unwrap_or_else(|| act(Path::new("a program"), file, is_there))
        }
        Named::Searched(path) if path.to_bytes().contains(&b'/') => found(Named::At(CWD, path), act),
        Named::Searched(name) => {
            // SAFETY: the program does not change its environment while it starts another.
            let list = unsafe { libc::getenv(c"PATH".as_ptr()).as_ref().map(|list| CStr::from_ptr(list)) };
            let mut buffer = [0; PATH_BYTES];
            for folder in list.unwrap_or(DEFAULT_PATH).to_bytes().split(|byte| *byte == b':') {
                let parts = [folder, if folder.is_empty() { b"" } else { b"/" }, name.to_bytes()];
                if let Some(path) = joined(&parts, &mut buffer)
                    && is_executable(CWD, path)
                {
                    return found(Named::At(CWD, path), act);
                }
            }
            act(Path::new(OsStr::from_bytes(name.to_bytes())), None, false)
        }
    }
}

/// Whether there is a regular file at a path that this user may execute.
fn is_executable(folder: BorrowedFd<'_>, path: &CStr) -> bool {
    let kind = statat(folder, path, AtFlags::empty()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    kind == Ok(FileType::RegularFile) && accessat(folder, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

fn joined<'a>(parts: &[&[u8]], buffer: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let mut rest = &mut buffer[..];
    parts.iter().chain(&[&b"\0"[..]]).try_for_each(|part| rest.write_all(part)).ok()?;
    CStr::from_bytes_until_nul(buffer).ok()
}

/// Opens a file in a thread of [`unshared_fd_thread`], whose end closes it.
fn open(folder: BorrowedFd<'_>, path: &CStr) -> Option<BorrowedFd<'static>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat(folder, path, flags, Mode::empty()).ok()?;
    // SAFETY: nobody closes it in the thread.
    Some(unsafe { BorrowedFd::borrow_raw(file.into_raw_fd()) })
}

/// A number that identifies a program.
fn number_of(file: BorrowedFd<'_>) -> Option<u64> {
    let stat = fstat(file).ok()?;
    Some((stat.st_dev << 40) ^ stat.st_ino ^ 1 << 63)
}

/// The reason why the program, or the interpreter of a script, is not covered, and its number.
fn examine(first: Option<BorrowedFd<'_>>) -> Option<(Uncovered, u64)> {
    let (mut front, mut interpreter) = ([0; FRONT_BYTES], [0; PATH_BYTES]);
    let mut file = first?;
    for _ in 0..SCRIPTS_MAX {
        match Program::of(file, &mut front).ok()? {
            Program::Uncovered(why) => return Some((why, number_of(file)?)),
            Program::Script(script) => {
                file = open(CWD, joined(&[script.interpreter.as_bytes()], &mut interpreter)?)?;
            }
            Program::Covered | Program::Unknown => return None,
        }
    }
    None
}

/// Names an uncovered program in a message, once, or refuses it.
fn name_or_refuse(settings: &Settings, path: &Path, uncovered: Option<(Why, u64)>) -> Result<(), Errno> {
    let Some((why, number)) = uncovered else { return Ok(()) };
    // SAFETY: it is never unmapped.
    let is_new = unsafe { ALREADY_NAMED.load(Ordering::Acquire).as_ref() }.is_none_or(|named| named.is_new(number));
    let refused = settings.strict_coverage;
    if refused || is_new {
        let what = if refused { "is refused (--strict-coverage)" } else { "runs without vmio" };
        messages::say(format_args!("{} {what}: {why}", path.display()));
    }
    if refused { Err(Errno::ACCESS) } else { Ok(()) }
}

/// A line of JSON about a process that is not served.
struct Report<'a> {
    process: pid_t,
    path: &'a Path,
    why: Why,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { process, path, why } = self;
        write!(f, "{{\"process\":{process},\"served\":false,\"program\":\"")?;
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
    fn each_program_is_named_once() {
        let named = AlreadyNamed([const { AtomicU64::new(0) }; NAMED_MAX]);
        assert!((1..=NAMED_MAX as u64).all(|number| named.is_new(number) && !named.is_new(number)));
        assert!(named.is_new(1000) && named.is_new(1000), "there is no space to remember it");
    }

    #[test]
    fn a_report_is_json_whatever_the_path() {
        let path = Path::new(OsStr::from_bytes(b"/a \"b\"\\\n\xff\xc3\xa4"));
        let report: serde_json::Value =
            serde_json::from_str(&Report { process: 7, path, why: Why::Environment }.to_string()).unwrap();
        assert_eq!(report["program"], "/a \"b\"\\\n\u{e4}");
        assert_eq!((&report["served"], report["process"].as_u64()), (&false.into(), Some(7)));
    }

    #[test]
    fn an_environment_preloads_vmio_if_it_names_the_library_and_the_folders() {
        let has = |variables: &[&CStr]| {
            let list: Vec<_> = variables.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
            // SAFETY: it is such a list.
            unsafe { preloads(list.as_ptr()) }
        };
        let (library, folders) = (c"LD_PRELOAD=/a/libother.so:/b/libvmio_posix.so", c"VMIO_RUN_UNDER=/data");
        assert!(has(&[c"A=b", library, folders]) && has(&[folders, c"LD_PRELOAD=libvmio_posix.so /a"]));
        for variables in [&[library][..], &[folders], &[c"LD_PRELOAD=/b/libvmio_posix.so.1", folders], &[]] {
            assert!(!has(variables), "{variables:?}");
        }
        // SAFETY: it may be null.
        assert!(!unsafe { preloads(ptr::null()) });
    }
}
