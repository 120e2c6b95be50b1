//! Tells whether a preloaded library covers a program.
//!
//! The loader preloads a library into dynamically linked programs, and the library sees their calls to the C library. It does not cover
//! static programs, programs with another user's rights, and Go programs.
//!
//! The answer comes from the file's first bytes, without an allocation, so that a child between `vfork` and `exec` may ask, too.
//!
//! ```
//! use preloadable::{FRONT_BYTES, Program};
//!
//! let shell = std::fs::File::open("/bin/sh")?;
//! assert_eq!(Program::of(&shell, &mut [0; FRONT_BYTES])?, Program::Covered);
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod variables;

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use object::read::elf::{FileHeader, NoteIterator, ProgramHeader};
use object::{Endianness, elf};
use rustix::fs::{Mode, fgetxattr, fstat};
use rustix::io::{Errno, pread};
use rustix::process::{getgid, getuid};

/// The number of bytes to read from the beginning of a file.
///
/// Linkers put the program headers there, and Go's linker its note, too. The headers of a patched program may lie anywhere; these are read
/// one by one.
pub const FRONT_BYTES: usize = 4096;

/// The attribute of a file that gives its program capabilities.
const CAPABILITIES: &CStr = c"security.capability";
/// The bytes to read of notes that lie behind the first bytes of the file.
const NOTES_BYTES: usize = 1024;

/// The kind of a program's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program<'a> {
    /// A program into which the loader preloads libraries.
    Covered,
    /// A program that runs without the preloaded library, or whose calls the library does not see.
    Uncovered(Uncovered),
    /// A script.
    Script(Script<'a>),
    /// Not a program for this machine's kernel (64-bit ELF).
    Unknown,
}

/// The reason why a preloaded library does not cover a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Uncovered {
    /// It has no loader.
    #[error("it is a static program, into which no loader preloads anything")]
    Static,
    /// Its runtime makes system calls itself, whether the C library is linked or not.
    #[error("it is a Go program, which calls the kernel without the C library")]
    Go {
        /// Whether it has a loader all the same, which preloads libraries for C code linked to it.
        has_loader: bool,
    },
    /// It runs as another user, so the loader ignores LD_PRELOAD.
    #[error("it is a setuid program, into which the loader preloads nothing")]
    SetUser,
    /// It runs as another group, so the loader ignores LD_PRELOAD.
    #[error("it is a setgid program, into which the loader preloads nothing")]
    SetGroup,
    /// It gets capabilities that its user does not have, so the loader ignores LD_PRELOAD.
    #[error("it is a program with capabilities, into which the loader preloads nothing")]
    Capabilities,
    /// It is a 32-bit program, whose loader takes only 32-bit libraries.
    #[error("it is a 32-bit program, into which no 64-bit library can be preloaded")]
    Narrow,
}

/// The first line of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script<'a> {
    /// The program that runs the script.
    pub interpreter: &'a OsStr,
    /// The first argument that the interpreter gets before the script's name.
    pub argument: Option<&'a OsStr>,
}

impl<'a> Program<'a> {
    /// Examines an open file. Reads its first bytes into `front`.
    ///
    /// # Errors
    /// The errors of `fstat` and `pread`.
    pub fn of(file: impl AsFd, front: &'a mut [u8; FRONT_BYTES]) -> Result<Self, Errno> {
        let file = file.as_fd();
        let mut len = 0;
        while len < front.len() {
            match pread(file, &mut front[len..], len as u64) {
                Ok(0) => break,
                Ok(bytes) => len += bytes,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        let front = &front[..len];
        let program = match Self::of_front(front) {
            // The kernel ignores the set-user-ID bits of a script.
            script @ Program::Script(_) => return Ok(script),
            Program::Unknown => Self::with_far_headers(file, front)?,
            program => program,
        };
        if program == Program::Unknown {
            return Ok(program);
        }
        let stat = fstat(file)?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.contains(Mode::SUID) && stat.st_uid != getuid().as_raw() {
            return Ok(Program::Uncovered(Uncovered::SetUser));
        }
        if mode.contains(Mode::SGID) && stat.st_gid != getgid().as_raw() {
            return Ok(Program::Uncovered(Uncovered::SetGroup));
        }
        if !getuid().is_root() && fgetxattr(file, CAPABILITIES, &mut [0_u8; 64]).is_ok() {
            return Ok(Program::Uncovered(Uncovered::Capabilities));
        }
        Ok(program)
    }

    /// Examines the first [`FRONT_BYTES`] bytes of a file, or all if it is shorter.
    #[must_use]
    pub fn of_front(front: &'a [u8]) -> Self {
        match front.strip_prefix(b"#!") {
            Some(rest) => Self::of_script(rest),
            None => Self::of_elf(front).unwrap_or(Program::Unknown),
        }
    }

    fn of_script(rest: &'a [u8]) -> Self {
        let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(OsStr::from_bytes);
        match words.next() {
            Some(interpreter) => Program::Script(Script { interpreter, argument: words.next() }),
            None => Program::Unknown,
        }
    }

    /// Examines a program whose headers are not in its first bytes.
    fn with_far_headers(file: BorrowedFd<'_>, front: &[u8]) -> Result<Self, Errno> {
        let Ok(header) = elf::FileHeader64::<Endianness>::parse(front) else { return Ok(Program::Unknown) };
        let Ok(endian) = header.endian() else { return Ok(Program::Unknown) };
        let (mut has_loader, mut is_of_go) = (false, false);
        for number in 0..u64::from(header.e_phnum(endian)) {
            let mut bytes = [0; size_of::<elf::ProgramHeader64<Endianness>>()];
            let Some(at) = header.e_phoff(endian).checked_add(number * bytes.len() as u64) else {
                return Ok(Program::Unknown);
            };
            if header.e_phentsize(endian) as usize != bytes.len() || pread(file, &mut bytes, at)? != bytes.len() {
                return Ok(Program::Unknown);
            }
            let Ok((part, _)) = object::from_bytes::<elf::ProgramHeader64<Endianness>>(&bytes) else {
                return Ok(Program::Unknown);
            };
            match part.p_type(endian) {
                elf::PT_INTERP => has_loader = true,
                elf::PT_NOTE => {
                    let mut notes = [0; NOTES_BYTES];
                    let wanted = part.p_filesz(endian).min(NOTES_BYTES as u64) as usize;
                    let len = pread(file, &mut notes[..wanted], part.p_offset(endian))?;
                    let notes =
                        NoteIterator::<elf::FileHeader64<Endianness>>::new(endian, part.p_align(endian), &notes[..len]);
                    is_of_go |= has_note_of_go(notes.ok(), endian);
                }
                _ => {}
            }
        }
        Ok(Self::of_parts(has_loader, is_of_go))
    }

    fn of_parts(has_loader: bool, is_of_go: bool) -> Self {
        match is_of_go {
            true => Program::Uncovered(Uncovered::Go { has_loader }),
            false if has_loader => Program::Covered,
            false => Program::Uncovered(Uncovered::Static),
        }
    }

    fn of_elf(front: &[u8]) -> Option<Self> {
        if elf::FileHeader32::<Endianness>::parse(front).is_ok_and(is_run_beside) {
            return Some(Program::Uncovered(Uncovered::Narrow));
        }
        let header = elf::FileHeader64::<Endianness>::parse(front).ok()?;
        let endian = header.endian().ok()?;
        let parts = header.program_headers(endian, front).ok()?;
        let is_of_go =
            |part: &elf::ProgramHeader64<Endianness>| has_note_of_go(part.notes(endian, front).ok().flatten(), endian);
        let has_loader = parts.iter().any(|part| part.p_type(endian) == elf::PT_INTERP);
        Some(Self::of_parts(has_loader, parts.iter().any(is_of_go)))
    }
}

/// Whether this machine's kernel may also run such a program.
fn is_run_beside(header: &elf::FileHeader32<Endianness>) -> bool {
    let machine = if cfg!(target_arch = "x86_64") { elf::EM_386 } else { elf::EM_ARM };
    header.endian().is_ok_and(|endian| header.e_machine(endian) == machine)
}

fn has_note_of_go(mut notes: Option<NoteIterator<'_, elf::FileHeader64<Endianness>>>, endian: Endianness) -> bool {
    std::iter::from_fn(|| notes.as_mut()?.next().ok()?)
        .any(|note| note.name() == elf::ELF_NOTE_GO && note.n_type(endian) == elf::NT_GO_BUILD_ID)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::*;

    fn look<'a>(path: &Path, front: &'a mut [u8; FRONT_BYTES]) -> Program<'a> {
        Program::of(File::open(path).unwrap(), front).unwrap()
    }

    fn compiled(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
        let (source, program) = (folder.join("main.c"), folder.join(name));
        fs::write(&source, "int main(void) { return 0; }").unwrap();
        assert!(Command::new("cc").args(flags).arg("-o").arg(&program).arg(&source).status().unwrap().success());
        program
    }

    #[test]
    fn a_program_with_a_loader_is_seen_and_a_static_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut front = [0; FRONT_BYTES];
        assert_eq!(look(&compiled(dir.path(), "dynamic", &[]), &mut front), Program::Covered);
        let uncovered = Program::Uncovered(Uncovered::Static);
        assert_eq!(look(&compiled(dir.path(), "static", &["-static"]), &mut front), uncovered);
        // It names no loader, though its linking is that of a library.
        assert_eq!(look(&compiled(dir.path(), "static-pie", &["-static-pie"]), &mut front), uncovered);
    }

    /// A C program with the note of Go's linker.
    #[test]
    fn a_program_with_the_note_of_go_is_not_seen() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join("note.s");
        fs::write(
            &note,
            ".section .note.GNU-stack,\"\",@progbits\n.section .note.go.buildid,\"a\",@note\n.long 4,4,4\n.asciz \"Go\"\n.byte 0\n.ascii \"abcd\"\n",
        )
        .unwrap();
        let mut front = [0; FRONT_BYTES];
        for (has_loader, flags) in [(true, &[][..]), (false, &["-static"])] {
            let program = compiled(dir.path(), "go", &[&[note.to_str().unwrap()], flags].concat());
            assert_eq!(look(&program, &mut front), Program::Uncovered(Uncovered::Go { has_loader }));
        }
    }

    #[test]
    fn a_program_with_another_users_rights_is_not_seen() {
        if !getuid().is_root() {
            return test_depth::skipped("only root can give a program away");
        }
        let dir = tempfile::tempdir().unwrap();
        let program = compiled(dir.path(), "other", &[]);
        let mut front = [0; FRONT_BYTES];
        for (user, group, mode, kind) in [
            (1, 0, 0o4755, Uncovered::SetUser),
            (0, 1, 0o2755, Uncovered::SetGroup),
            (1, 0, 0o6755, Uncovered::SetUser),
        ] {
            chown(&program, Some(user), Some(group)).unwrap();
            fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
            assert_eq!(look(&program, &mut front), Program::Uncovered(kind));
        }
        chown(&program, Some(0), Some(0)).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
        assert_eq!(look(&program, &mut front), Program::Covered);
    }

    /// Tools that patch programs move the headers, to have space for more of them.
    #[test]
    fn headers_may_lie_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        let mut front = [0; FRONT_BYTES];
        for (flags, expected) in [(&[][..], Program::Covered), (&["-static"], Program::Uncovered(Uncovered::Static))] {
            let program = compiled(dir.path(), "far", flags);
            let mut bytes = fs::read(&program).unwrap();
            let number =
                |at: usize, len: usize| (0..len).rev().fold(0, |sum, byte| sum << 8 | usize::from(bytes[at + byte]));
            let (start, len) = (number(32, 8), number(54, 2) * number(56, 2));
            let end = bytes.len().next_multiple_of(8).max(2 * FRONT_BYTES);
            bytes.resize(end, 0);
            bytes.extend_from_within(start..start + len);
            bytes[start..start + len].fill(0);
            bytes[32..40].copy_from_slice(&(end as u64).to_le_bytes());
            fs::write(&program, &bytes).unwrap();
            assert_eq!(look(&program, &mut front), expected);
            bytes.truncate(end + len - 1);
            fs::write(&program, &bytes).unwrap();
            assert_eq!(look(&program, &mut front), Program::Unknown);
        }
    }

    #[test]
    fn a_narrow_program_is_not_seen() {
        let mut front = [0; 52];
        front[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
        let machine: u16 = if cfg!(target_arch = "x86_64") { 3 } else { 40 };
        front[18..20].copy_from_slice(&machine.to_le_bytes());
        assert_eq!(Program::of_front(&front), Program::Uncovered(Uncovered::Narrow));
        front[18] = 8;
        assert_eq!(Program::of_front(&front), Program::Unknown);
    }

    #[test]
    fn a_script_gets_no_rights_by_its_bits() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        if !getuid().is_root() {
            return test_depth::skipped("only root can give a script away");
        }
        chown(&script, Some(1), Some(1)).unwrap();
        fs::set_permissions(&script, Permissions::from_mode(0o6755)).unwrap();
        let mut front = [0; FRONT_BYTES];
        assert!(matches!(look(&script, &mut front), Program::Script(_)));
    }

    #[test]
    fn the_first_line_of_a_script_names_its_program() {
        let script = |interpreter: &'static str, argument: Option<&'static str>| {
            Program::Script(Script { interpreter: OsStr::new(interpreter), argument: argument.map(OsStr::new) })
        };
        assert_eq!(Program::of_front(b"#!/bin/sh\nexit"), script("/bin/sh", None));
        assert_eq!(Program::of_front(b"#! /usr/bin/env\tpython3 -u\n"), script("/usr/bin/env", Some("python3")));
        assert_eq!(Program::of_front(b"#!/bin/sh"), script("/bin/sh", None));
        for none in [&b"#!\n/bin/sh"[..], b"#!", b"exit 0\n", b"", b"\x7fELF", b"\x7fELF\x02\x01\x01"] {
            assert_eq!(Program::of_front(none), Program::Unknown, "{none:?}");
        }
    }
}
