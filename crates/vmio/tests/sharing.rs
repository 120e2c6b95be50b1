//! Who may have a file mapped beside whom, between two real processes: docs/formats/file-locks.md.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Stdio;

use vmio::backing::FileBacking;
use vmio::{Access, Cache, Engine, Error, Mapping, MappingOptions};

use crate::support::child::{command, is_child};
use crate::support::{PAGE, at, cache_of, engine, load, store, watchdog};

const FILE: &str = "VMIO_TEST_FILE";

/// How a process maps a file.
type User = (&'static str, Engine, Access);

const USERS: [User; 4] = [
    ("cached writer", Engine::Sigbus, Access::ReadWrite),
    ("cached reader", Engine::Sigbus, Access::ReadOnly),
    ("managed writer", Engine::Managed, Access::ReadWrite),
    ("managed reader", Engine::Managed, Access::ReadOnly),
];

/// The engine of those who keep pages of their own: the module, where this run of the suite is about that.
fn caching_engine() -> Engine {
    if engine() == Engine::Kernel { Engine::Kernel } else { Engine::Sigbus }
}

fn map(user: User, path: &Path) -> vmio::Result<(Mapping, Cache)> {
    let (_, engine, access) = user;
    let engine = if engine == Engine::Managed { engine } else { caching_engine() };
    let cache = cache_of(512).engine(engine).build()?;
    let map = Mapping::open(&cache, FileBacking::open(path, access)?, MappingOptions::new())?;
    Ok((map, cache))
}

fn file_of(pages: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(pages * PAGE).unwrap();
    file
}

/// In the child of the test of that name: tries to be each user in turn, and ends the test.
fn answer(test: &str) -> bool {
    let is_child = is_child(test);
    if is_child {
        let path = std::env::var(FILE).unwrap();
        println!(); // Behind what the test's harness has to say.
        for user in USERS {
            match map(user, Path::new(&path)) {
                Ok((map, _cache)) => println!("{}: mapped {}", user.0, load(&map, 0)),
                Err(error @ Error::InUse { .. }) => println!("{}: {error}", user.0),
                Err(error) => panic!("{error}"),
            }
        }
    }
    is_child
}

/// What another process gets that tries to be each user in turn.
fn ask(test: &str, path: &Path) -> [String; 4] {
    let output = command(test).env(FILE, path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    USERS.map(|(name, ..)| {
        let answer = text.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        answer.unwrap_or_else(|| panic!("no answer of the {name} in {text}")).to_owned()
    })
}

fn is_mapped(answers: [String; 4]) -> [bool; 4] {
    answers.map(|answer| answer.starts_with("mapped"))
}

#[test]
fn every_pair_of_users_shares_or_is_refused() {
    const NAME: &str = "sharing::every_pair_of_users_shares_or_is_refused";
    if answer(NAME) {
        return;
    }
    let file = file_of(4);
    let shares = [
        [false, false, false, false],
        [false, true, false, true],
        [false, false, true, true],
        [false, true, true, true],
    ];
    for (holder, expected) in USERS.into_iter().zip(shares) {
        let held = map(holder, file.path()).unwrap();
        assert_eq!(is_mapped(ask(NAME, file.path())), expected, "beside a {}", holder.0);
        held.0.close().unwrap();
    }
    assert_eq!(is_mapped(ask(NAME, file.path())), [true; 4], "nobody has it mapped");
}

#[test]
fn a_refusal_says_who_and_what_to_do() {
    const NAME: &str = "sharing::a_refusal_says_who_and_what_to_do";
    if answer(NAME) {
        return;
    }
    let file = file_of(4);
    let holders = [
        (USERS[0], 3, "mapped for writing; close it there, or open it with Engine::Managed in both"),
        (USERS[1], 0, "mapped read-only; close it there, or open it read-only here too"),
        (USERS[1], 2, "close it there, open it with Engine::Managed there too, or read-only here"),
        (USERS[2], 1, "with Engine::Managed; close it there, or open it with Engine::Managed here too"),
        (USERS[3], 0, "with Engine::Managed; close it there, or open it with Engine::Managed here too"),
    ];
    for (holder, wanted, message) in holders {
        let _held = map(holder, file.path()).unwrap();
        let answer = &ask(NAME, file.path())[wanted];
        assert!(answer.contains(file.path().to_str().unwrap()) && answer.ends_with(message), "{answer}");
    }
}

/// What is not opened for writing is not locked as if it were.
#[test]
fn a_read_only_mapping_of_a_writable_backing_is_a_reader() {
    const NAME: &str = "sharing::a_read_only_mapping_of_a_writable_backing_is_a_reader";
    if answer(NAME) {
        return;
    }
    let file = file_of(4);
    let cache = cache_of(512).engine(caching_engine()).build().unwrap();
    let backing = FileBacking::open(file.path(), Access::ReadWrite).unwrap();
    let _held = Mapping::open(&cache, backing, MappingOptions::new().access(Access::ReadOnly)).unwrap();
    assert_eq!(is_mapped(ask(NAME, file.path())), [false, true, false, true]);
}

/// Within a process, two engines are kept apart before any lock is asked for.
#[test]
fn the_engines_do_not_share_a_file_within_a_process() {
    let file = file_of(4);
    for (first, second) in [(USERS[0], USERS[2]), (USERS[1], USERS[3]), (USERS[2], USERS[1])] {
        let _held = map(first, file.path()).unwrap();
        assert!(matches!(map(second, file.path()), Err(Error::AlreadyMapped { .. })));
    }
}

#[test]
fn a_file_that_is_mapped_is_not_created_anew() {
    for holder in USERS {
        let file = file_of(4);
        let _held = map(holder, file.path()).unwrap();
        assert!(matches!(FileBacking::create(file.path(), PAGE), Err(Error::InUse { .. })), "beside a {}", holder.0);
        assert_eq!(file.path().metadata().unwrap().len(), 4 * PAGE);
    }
}

/// The lock ends with the process, however it ends.
#[test]
fn a_process_that_is_killed_keeps_nobody_off() {
    const NAME: &str = "sharing::a_process_that_is_killed_keeps_nobody_off";
    let _watchdog = watchdog(NAME);
    if is_child(NAME) {
        let _held = map(USERS[0], Path::new(&std::env::var(FILE).unwrap())).unwrap();
        println!("\nlocked");
        loop {
            std::thread::park();
        }
    }
    let file = file_of(4);
    let mut child = command(NAME).env(FILE, file.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "locked"));
    for user in USERS {
        assert!(matches!(map(user, file.path()), Err(Error::InUse { .. })), "{}", user.0);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for user in USERS {
        map(user, file.path()).unwrap();
    }
}

/// What other programs lock is the bytes of the file, for themselves; only who locks all of it, and all that it may
/// grow to, is in the way.
#[test]
fn locks_of_others_on_the_whole_file_keep_writers_off() {
    let file = file_of(4);
    let other = File::options().read(true).write(true).open(file.path()).unwrap();
    let lock = |len| {
        // SAFETY: a zeroed flock is valid: the lock starts at byte 0 of the file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_len) = (libc::F_WRLCK as i16, len);
        // SAFETY: reads a flock that lives long enough.
        assert_eq!(unsafe { libc::fcntl(other.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }, 0);
    };
    lock(4 * PAGE as i64);
    for user in USERS {
        map(user, file.path()).unwrap();
    }
    lock(0);
    for user in USERS {
        let refused = map(user, file.path()).map(drop).unwrap_err();
        assert!(refused.to_string().contains("not vmio's") && refused.to_string().contains("lslocks"), "{refused}");
    }
}

/// Readers that keep pages of their own see what a writer has left behind, once it is gone.
#[test]
fn a_reader_sees_what_the_writer_before_it_has_stored() {
    const NAME: &str = "sharing::a_reader_sees_what_the_writer_before_it_has_stored";
    if answer(NAME) {
        return;
    }
    let file = file_of(4);
    for (writer, value) in [(USERS[0], 7), (USERS[2], 8)] {
        let (map, _cache) = map(writer, file.path()).unwrap();
        store(&map, at(0), value);
        map.close().unwrap();
        assert_eq!(ask(NAME, file.path()), [(); 4].map(|()| format!("mapped {value}")));
    }
}
