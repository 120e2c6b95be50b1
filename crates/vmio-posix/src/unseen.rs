//! Programs that this one starts, or becomes, and that vmio does not see: the user is told, or they are refused (`--strict-coverage`).
//!
//! A child between vfork and exec comes here, too: nothing is allocated.

use std::ffi::{CStr, OsStr, c_char};
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use libc::pid_t;
use preloadable::{FRONT_BYTES, Program, Unseen};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, fstat, openat, statat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::apart;
use crate::messages;
use crate::settings::{ReportForm, Settings};

/// Linux follows so many scripts that are the interpreters of others.
const SCRIPTS_MAX: usize = 5;
/// The longest path.
const PATH_BYTES: usize = 4096;
/// Programs that can be told of once; others are told of again.
const TOLD_MAX: usize = 512;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// That of this process.
pub(crate) fn environment() -> *const *const c_char {
    // SAFETY: the program does not change it while it starts another.
    unsafe { environ }
}

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

/// What has vmio preloaded.
const LIBRARY: &[u8] = b"libvmio_posix.so";
/// Where the C library looks if the environment does not say.
const DEFAULT_PATH: &CStr = c"/bin:/usr/bin";

/// Whether the environment had it preloaded into this process, and not something else.
static IS_PRELOADED: AtomicBool = AtomicBool::new(false);

/// The library has been loaded.
pub(crate) fn start() {
    if Settings::of_this_process().is_none() {
        return;
    }
    // SAFETY: it is the C library's list.
    IS_PRELOADED.store(unsafe { preloads(environment()) }, Ordering::Relaxed);
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

/// Why a program runs without vmio.
#[derive(Clone, Copy)]
pub(crate) enum Why {
    /// Because of what it is.
    Program(Unseen),
    /// Because of what it is given.
    Environment,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Program(why) => why.fmt(f),
            Why::Environment => {
                f.write_str("its environment does not have vmio preloaded (LD_PRELOAD and VMIO_RUN_UNDER)")
            }
        }
    }
}

/// What came of a look at a program.
#[derive(Clone, Copy)]
pub(crate) struct Looked {
    /// Whether there is something that this user may execute.
    pub(crate) is_there: bool,
    pub(crate) why: Option<Why>,
}

/// Before an exec or a spawn, with the environment that the program will have.
///
/// # Errors
/// EACCES if the program is not seen, and the user wants none such.
///
/// # Safety
/// The environment is null or a list of C strings that ends with null.
pub(crate) unsafe fn check(named: Named<'_>, environment: *const *const c_char) -> Result<Looked, Errno> {
    let unknown = Looked { is_there: true, why: None };
    let Some(settings) = Settings::of_this_process() else { return Ok(unknown) };
    // SAFETY: by the caller.
    let is_preloaded = !IS_PRELOADED.load(Ordering::Relaxed) || unsafe { preloads(environment) };
    // Its stack has room for the paths, which that of a handler may not have.
    let outcome = apart::run(|| {
        found(named, |path, file, is_there| {
            let why = match look(file) {
                Some((why, number)) => Some((Why::Program(why), number)),
                None if is_there && !is_preloaded => {
                    file.and_then(number_of).map(|number| (Why::Environment, number ^ 1 << 62))
                }
                None => None,
            };
            told(settings, path, why)?;
            Ok(Looked { is_there, why: why.map(|(why, _)| why) })
        })
    });
    outcome.unwrap_or(Ok(unknown))
}

/// For statistics: a process is, or is about to be, a program that was looked at.
pub(crate) fn report(named: Named<'_>, looked: Looked, process: pid_t) {
    let form = Settings::of_this_process().and_then(|settings| settings.report);
    let Some((form, why)) = form.zip(looked.why) else { return };
    apart::run(|| {
        found(named, |path, _, _| match form {
            ReportForm::Text => messages::say(format_args!("process {process}, not served: {}", path.display())),
            ReportForm::Json => messages::write_formatted(format_args!("{}\n", Report { process, path, why })),
        });
    });
}

/// Whether an environment has the loader preload vmio, and says what for.
///
/// # Safety
/// It is null or a list of C strings that ends with null.
unsafe fn preloads(environment: *const *const c_char) -> bool {
    let (mut has_library, mut has_folders) = (false, false);
    let mut at = environment;
    // SAFETY: by the caller, here and below.
    while let Some(variable) = unsafe { at.as_ref() }.filter(|variable| !variable.is_null()) {
        // SAFETY: likewise.
        let text = unsafe { CStr::from_ptr(*variable) }.to_bytes();
        if let Some(list) = text.strip_prefix(b"LD_PRELOAD=") {
            has_library |= list.split(|byte| b": \t\n".contains(byte)).any(|path| path.ends_with(LIBRARY));
        }
        has_folders |= text.starts_with(b"VMIO_RUN_UNDER=");
        // SAFETY: it does not end here.
        at = unsafe { at.add(1) };
    }
    has_library && has_folders
}

/// Finds a program, in a thread of [`apart`]: its path, the file if it may be read, and whether it may be executed.
fn found<T>(named: Named<'_>, mut act: impl FnMut(&Path, Option<BorrowedFd<'_>>, bool) -> T) -> T {
    match named {
        Named::At(folder, path) => {
            act(Path::new(OsStr::from_bytes(path.to_bytes())), open(folder, path), is_executable(folder, path))
        }
        // Open for its path alone it could not be read.
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

/// In a thread of [`apart`], with whose end it is closed.
fn open(folder: BorrowedFd<'_>, path: &CStr) -> Option<BorrowedFd<'static>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat(folder, path, flags, Mode::empty()).ok()?;
    // SAFETY: nobody closes it in the thread.
    Some(unsafe { BorrowedFd::borrow_raw(file.into_raw_fd()) })
}

/// By which a program can be told from others.
fn number_of(file: BorrowedFd<'_>) -> Option<u64> {
    let stat = fstat(file).ok()?;
    Some((stat.st_dev << 40) ^ stat.st_ino ^ 1 << 63)
}

/// Why the program is not seen, or the one that runs it if it is a script, and its number.
fn look(first: Option<BorrowedFd<'_>>) -> Option<(Unseen, u64)> {
    let (mut front, mut interpreter) = ([0; FRONT_BYTES], [0; PATH_BYTES]);
    let mut file = first?;
    for _ in 0..SCRIPTS_MAX {
        match Program::of(file, &mut front).ok()? {
            Program::Unseen(why) => return Some((why, number_of(file)?)),
            Program::Script(script) => {
                file = open(CWD, joined(&[script.interpreter.as_bytes()], &mut interpreter)?)?;
            }
            Program::Seen | Program::Unknown => return None,
        }
    }
    None
}

/// Tells of it, once, or refuses it.
fn told(settings: &Settings, path: &Path, unseen: Option<(Why, u64)>) -> Result<(), Errno> {
    let Some((why, number)) = unseen else { return Ok(()) };
    // SAFETY: it is never unmapped.
    let is_new = unsafe { TOLD.load(Ordering::Acquire).as_ref() }.is_none_or(|told| told.is_new(number));
    let refused = settings.strict_coverage;
    if refused || is_new {
        let what = if refused { "is refused (--strict-coverage)" } else { "runs without vmio" };
        messages::say(format_args!("{} {what}: {why}", path.display()));
    }
    if refused { Err(Errno::ACCESS) } else { Ok(()) }
}

/// An object in one line, of a program that is not served.
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
    fn each_program_is_told_of_once() {
        let told = Told([const { AtomicU64::new(0) }; TOLD_MAX]);
        assert!((1..=TOLD_MAX as u64).all(|number| told.is_new(number) && !told.is_new(number)));
        assert!(told.is_new(1000) && told.is_new(1000), "there is no room to remember it");
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
