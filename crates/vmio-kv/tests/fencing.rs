//! A store is taken over from an owner that is still active. The owner's acknowledged writes stay, its late writes hit nothing, and it
//! acknowledges nothing more.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::gate::{Gate, Gated};
use crate::support::simulated_disk::SimulatedDisk;
use crate::support::{Random, assert_sound};
use vmio_kv::{Db, Durability, Error, KeyspaceHandle, Options, WriteBatch};

const MIB: u64 = 1 << 20;
const KEYS: u64 = 300;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .memtable_bytes(6 << 10)
        .growth_factor(3)
        .durability(Durability::None)
        .max_space_amplification(1.1)
        .max_volume_bytes(512 * MIB)
        .fenced(true)
}

fn key(number: u64) -> Vec<u8> {
    if number.is_multiple_of(2) {
        number.to_be_bytes().to_vec()
    } else {
        format!("a front that many keys share, longer than an entry's window {number:04}").into()
    }
}

fn is_fenced(error: &Error) -> bool {
    matches!(error, Error::Fenced { own_epoch, new_epoch, .. } if new_epoch > own_epoch)
}

fn contents(db: &Db) -> Model {
    db.scan(..).map(|entry| entry.unwrap()).collect()
}

/// Of all keyspaces: keys of the second keyspace are prefixed with its name.
fn all_contents(db: &Db) -> Model {
    let mut all = contents(db);
    if let Ok(second) = db.keyspace(SECOND) {
        all.extend(second.scan(..).map(|entry| entry.unwrap()).map(|(key, value)| (in_second(&key), value)));
    }
    all
}

/// The keyspace has its own segment, if it exists.
const SECOND: &str = "second";

fn in_second(key: &[u8]) -> Vec<u8> {
    [SECOND.as_bytes(), key].concat()
}

/// The actions of an owner: all states that the store went through, and the last one acknowledged as durable.
struct History {
    states: Vec<Model>,
    /// Of each keyspace.
    durable: [usize; 2],
}

impl History {
    fn of(state: Model) -> Self {
        History { states: vec![state], durable: [0; 2] }
    }

    /// Whether the store may hold this after the last acknowledged durable state: checked for each segment.
    fn allows(&self, found: &Model) -> bool {
        [false, true].into_iter().all(|is_second| {
            let of_keyspace = |state: &Model| -> Model {
                let is_it = |key: &&Vec<u8>| key.starts_with(SECOND.as_bytes()) == is_second;
                state.keys().filter(is_it).map(|key| (key.clone(), state[key].clone())).collect()
            };
            let found = of_keyspace(found);
            self.states[self.durable[usize::from(is_second)]..].iter().any(|state| of_keyspace(state) == found)
        })
    }
}

/// One random step of an owner. A failed step may have been done.
fn step(db: &Db, random: &mut Random, history: &mut History) -> Result<(), Error> {
    let mut state = history.states.last().unwrap().clone();
    let mut batch = WriteBatch::new();
    let second = db.keyspace(SECOND).ok().filter(|_| random.below(2) == 0);
    let keyspace = second.as_ref().unwrap_or(db.default_keyspace());
    for _ in 0..if random.below(4) == 0 { 1 + random.below(20) } else { 1 } {
        let key = key(random.below(KEYS));
        let name = if second.is_some() { in_second(&key) } else { key.clone() };
        if random.below(5) == 0 {
            batch.delete(keyspace, &key)?;
            state.remove(&name);
        } else {
            let most = if random.below(4) == 0 { 60_000 } else { 300 };
            let mut bytes = random.below(most) as usize;
            if random.below(120) == 0 {
                bytes += 1 << 20;
            }
            let value = vec![random.below(256) as u8; bytes];
            batch.put(keyspace, &key, &value)?;
            state.insert(name, value);
        }
    }
    let durability = if random.below(6) == 0 { Durability::Sync } else { Durability::None };
    history.states.push(state);
    db.write_with(&batch, durability)?;
    if durability == Durability::Sync {
        history.durable[usize::from(second.is_some())] = history.states.len() - 1;
    }
    match random.below(60) {
        0 | 1 => {
            db.flush()?;
            history.durable = [history.states.len() - 1; 2];
        }
        2 => db.collect_garbage()?,
        _ => {}
    }
    Ok(())
}

/// One life of a former owner, which is stopped at a write and continues after the new owner has done some work, and of new owners. The
/// disk may lose power at the end.
fn run(seed: u64, stop_after: u64, seen: &mut Seen) -> bool {
    let when = format!("seed {seed}, stopped after {stop_after}");
    let mut random = Random(seed);
    let options = || options().compaction_threads(1 + seed as usize % 4);
    let disk = SimulatedDisk::new(seed, &[64 * MIB]);
    let db = Db::create_on(disk.open(0), options()).unwrap();
    if seed % 2 == 1 {
        db.create_segment().unwrap().keyspace_or_create(SECOND).unwrap();
    }
    db.close().unwrap();
    let gate = Gate::default();
    let old = Db::open_on(Gated { backing: disk.open(0), gate: gate.clone() }, options()).unwrap();
    let history = Mutex::new(History::of(Model::new()));
    let (is_over, was_taken) = (AtomicBool::new(false), AtomicBool::new(false));
    let late_steps = AtomicU64::new(0);
    let mut old_random = Random(random.next());
    gate.stop_after(stop_after);
    let mut new_history = std::thread::scope(|scope| {
        let old = scope.spawn(|| {
            for _ in 0..2000 {
                // While the owner is stopped in the middle of a step, only code that knows this looks at it.
                let mut history = history.lock().unwrap();
                let done = step(&old, &mut old_random, &mut history);
                if was_taken.load(Ordering::SeqCst) {
                    late_steps.fetch_add(1, Ordering::SeqCst);
                }
                if let Err(error) = done {
                    assert!(is_fenced(&error), "{when}: {error}");
                    break;
                }
            }
            is_over.store(true, Ordering::SeqCst);
            old
        });
        if !gate.wait_until_stopped(|| is_over.load(Ordering::SeqCst)) {
            drop(old.join().unwrap());
            return None;
        }
        let new = Db::open_on(disk.open(0), options().take_over(true)).unwrap();
        was_taken.store(true, Ordering::SeqCst);
        let found = all_contents(&new);
        let mut new_history = History::of(found);
        for _ in 0..random.below(40) {
            step(&new, &mut random, &mut new_history).unwrap();
        }
        gate.open();
        for _ in 0..random.below(200) {
            step(&new, &mut random, &mut new_history).unwrap();
        }
        let old = old.join().unwrap();
        // The owner may have had nothing more to write.
        let error = old.put_with(b"late", b"1", Durability::Sync).unwrap_err();
        assert!(is_fenced(&error), "{when}: {error}");
        if let Ok(second) = old.keyspace(SECOND) {
            assert!(is_fenced(&second.put_with(b"late", b"1", Durability::Sync).unwrap_err()), "{when}");
        }
        assert!(seed % 2 == 1 || is_fenced(&old.create_segment().unwrap_err()), "{when}");
        assert!(is_fenced(&old.flush().unwrap_err()) && is_fenced(&old.sync().unwrap_err()), "{when}");
        assert!(is_fenced(&old.keyspace_or_create("late").unwrap_err()), "{when}");
        old.scan(..).for_each(|entry| drop(entry.unwrap()));
        assert!(is_fenced(&old.close().unwrap_err()), "{when}");
        for _ in 0..random.below(30) {
            step(&new, &mut random, &mut new_history).unwrap();
        }
        assert_eq!(&all_contents(&new), new_history.states.last().unwrap(), "{when}");
        if random.below(2) == 0 {
            new.close().unwrap();
            new_history.durable = [new_history.states.len() - 1; 2];
        }
        Some(new_history)
    });
    let Some(new_history) = &mut new_history else { return false };
    let history = history.into_inner().unwrap();
    let taken = &new_history.states[0];
    assert!(history.allows(taken), "{when}: what was taken over is not what was acknowledged");
    seen.late_steps += late_steps.into_inner();
    seen.takeovers += 1;
    let disk = if random.below(2) == 0 { disk.after_power_cut() } else { disk };
    assert_sound(disk.open(0), &options(), &format!("{when}, after both"));
    let last = Db::open_on(disk.open(0), options().take_over(random.below(2) == 0)).unwrap();
    let found = all_contents(&last);
    assert!(new_history.allows(&found), "{when}: the new owner's state is none of his");
    let mut history = History::of(found);
    for _ in 0..60 {
        step(&last, &mut random, &mut history).unwrap();
    }
    last.forget_former_owners().unwrap();
    for _ in 0..60 {
        step(&last, &mut random, &mut history).unwrap();
    }
    last.close().unwrap();
    assert_sound(disk.open(0), &options(), &format!("{when}, in the end"));
    let db = Db::open_on(disk.open(0), options()).unwrap();
    assert_eq!(&all_contents(&db), history.states.last().unwrap(), "{when}");
    db.close().unwrap();
    assert_sound(disk.open(0), &options(), &format!("{when}, ordinarily"));
    true
}

#[derive(Default)]
struct Seen {
    late_steps: u64,
    takeovers: u64,
}

#[test]
fn no_late_write_of_a_former_owner_hits_anything() {
    let mut seen = Seen::default();
    for seed in test_depth::seeds(2, 16) {
        // Over all seeds, each write of the owner is the first late one.
        run(seed, seed * 3, &mut seen);
        run(seed, Random(seed).below(1500), &mut seen);
    }
    println!("{} take-overs, {} late steps", seen.takeovers, seen.late_steps);
    assert!(test_depth::seeds_are_chosen() || seen.takeovers > 0 && seen.late_steps > 0);
}

/// Memtables and logs of several keyspaces are there after each takeover, wherever the power fails.
#[test]
fn power_may_fail_while_a_store_of_several_keyspaces_is_taken_over() {
    let acknowledged = |db: &Db| {
        for keyspace in ["a", "b", "c"] {
            let keyspace = db.keyspace(keyspace).unwrap();
            for number in 0..20_u64 {
                assert_eq!(keyspace.get(&number.to_be_bytes()).unwrap().as_deref(), Some(&[7; 100][..]), "{number}");
            }
        }
    };
    let (mut cut_short, mut operations) = (0, 0);
    let step = test_depth::step(5, 1);
    loop {
        let when = format!("power fails after {operations} operations");
        let options = || options().memtable_bytes(1 << 20);
        let disk = SimulatedDisk::new(operations, &[64 * MIB]);
        let old = Db::create_on(disk.open(0), options()).unwrap();
        // Every other time the last keyspace has its own segment.
        let second = (cut_short % 2 == 1).then(|| old.create_segment().unwrap());
        for keyspace in ["a", "b", "c"] {
            let keyspace = match &second {
                Some(second) if keyspace == "c" => second.keyspace_or_create(keyspace).unwrap(),
                _ => old.keyspace_or_create(keyspace).unwrap(),
            };
            (0..20_u64).for_each(|number| {
                keyspace.put_with(&number.to_be_bytes(), &[7; 100], Durability::Sync).unwrap();
            });
        }
        disk.cut_power_after(operations);
        let taken = Db::open_on(disk.open(0), options().take_over(true));
        let is_whole = taken.is_ok();
        if let Ok(taken) = taken {
            acknowledged(&taken);
        }
        drop(old);
        let disk = disk.after_power_cut();
        assert_sound(disk.open(0), &options(), &when);
        let db = Db::open_on(disk.open(0), options().take_over(cut_short / 2 % 2 == 0));
        acknowledged(&db.unwrap_or_else(|error| panic!("{when}: {error}")));
        if is_whole {
            break;
        }
        cut_short += 1;
        operations += step;
    }
    println!("{cut_short} take-overs were cut short");
    assert!(operations > 20 && cut_short > 2, "{operations}");
}

#[test]
fn a_takeover_needs_no_lock_and_keeps_others_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let old = Db::create(&path, options().max_volume_bytes(100 * MIB)).unwrap();
    old.put_with(b"durable", b"1", Durability::Sync).unwrap();
    old.put(b"in memory", b"1").unwrap();
    let snapshot = old.snapshot();
    let is_in_use = |result: Result<Db, Error>| {
        matches!(result, Err(Error::StillOpen { .. } | Error::Io(vmio::Error::InUse { .. })))
    };
    assert!(is_in_use(Db::open(&path, options())));
    let new = Db::open(&path, options().take_over(true)).unwrap();
    assert_eq!(contents(&new), BTreeMap::from([(b"durable".to_vec(), b"1".to_vec())]));
    new.put_with(b"durable", b"2", Durability::Sync).unwrap();
    let error = old.put_with(b"late", b"1", Durability::Sync).unwrap_err();
    assert!(is_fenced(&error), "{error}");
    assert_eq!(snapshot.get(b"durable").unwrap().as_deref(), Some(&b"1"[..]));
    drop((snapshot, old));
    // The former owner's lock has gone with it, and the new owner has another.
    let error = Db::open(&path, options()).unwrap_err();
    assert!(error.to_string().contains("has taken it over"), "{error}");
    let third = Db::open(&path, options().take_over(true)).unwrap();
    assert!(is_fenced(&new.sync().and_then(|()| new.put_with(b"late", b"2", Durability::Sync)).unwrap_err()));
    assert_eq!(third.get(b"durable").unwrap().as_deref(), Some(&b"2"[..]));
    drop(new);
    third.close().unwrap();
    let space = |db: &Db| db.stats().unwrap().space_bytes;
    let db = Db::open(&path, options()).unwrap();
    assert_eq!(contents(&db), BTreeMap::from([(b"durable".to_vec(), b"2".to_vec())]));
    assert!(space(&db) <= 16 * MIB, "{} bytes: what former owners had is free again", space(&db));
}

/// What an owner does not check with each flush, it checks at its next commit.
#[test]
fn a_former_owners_table_may_be_log_after_a_crash() {
    let disk = SimulatedDisk::new(1, &[256 * MIB]);
    // Nothing is compacted: no commit records the log's chunks.
    let options = options().memtable_bytes(1 << 20);
    let old = Db::create_on(disk.open(0), options.clone()).unwrap();
    old.put_with(b"first", b"1", Durability::Sync).unwrap();
    let new = Db::open_on(disk.open(0), options.clone().take_over(true)).unwrap();
    drop(old);
    new.forget_former_owners().unwrap();
    // The lowest free unit is now the one that held the former owner's tables.
    for number in 0..12_u64 {
        new.put_with(&key(number), &vec![7; MIB as usize / 2], Durability::Sync).unwrap();
    }
    let disk = disk.after_power_cut();
    drop(new);
    let db = Db::open_on(disk.open(0), options).unwrap();
    (0..12).for_each(|number| assert!(db.get(&key(number)).unwrap().is_some()));
    assert_eq!(db.get(b"first").unwrap().as_deref(), Some(&b"1"[..]));
    db.close().unwrap();
}

#[test]
fn an_owner_that_does_not_check_after_each_flush_is_fenced_at_its_next_commit() {
    let disk = SimulatedDisk::new(7, &[64 * MIB]);
    let old = Db::create_on(disk.open(0), options().fenced(false)).unwrap();
    let new = Db::open_on(disk.open(0), options().take_over(true)).unwrap();
    old.put_with(b"late", b"1", Durability::Sync).unwrap();
    assert!(is_fenced(&old.flush().unwrap_err()));
    assert!(is_fenced(&old.put_with(b"late", b"2", Durability::Sync).unwrap_err()));
    assert_eq!(new.get(b"late").unwrap(), None);
}

/// Puts to keyspaces until none has space, also once all garbage is gone: a merge that ends later must not find some. Returns the number
/// of keys in each.
fn fill<const KEYSPACES: usize>(db: &Db, keyspaces: [&KeyspaceHandle; KEYSPACES]) -> [u64; KEYSPACES] {
    let mut keys = [0_u64; KEYSPACES];
    loop {
        let before = keys;
        for (keyspace, keys) in keyspaces.iter().zip(&mut keys) {
            while keyspace.put(&keys.to_be_bytes(), &[7; 30_000]).is_ok() {
                *keys += 1;
            }
        }
        db.flush().unwrap();
        if keys == before {
            return keys;
        }
        db.collect_garbage().unwrap();
    }
}

#[test]
fn without_space_outside_old_fences_the_volume_grows_or_the_takeover_is_refused() {
    let disk = SimulatedDisk::new(5, &[40 * MIB]);
    let old = Db::create_on(disk.open(0), options().max_volume_bytes(40 * MIB)).unwrap();
    let [keys] = fill(&old, [old.default_keyspace()]);
    let error = Db::open_on(disk.open(0), options().max_volume_bytes(40 * MIB).take_over(true)).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    old.keyspace_or_create("it was not claimed in vain").unwrap();
    let new = Db::open_on(disk.open(0), options().take_over(true)).unwrap();
    assert!(is_fenced(&old.keyspace_or_create("late").unwrap_err()));
    assert_eq!(contents(&new).len() as u64, keys);
    assert!(new.stats().unwrap().volume_bytes > 40 * MIB);
    new.put_with(b"more", &[8; 100_000], Durability::Sync).unwrap();
    new.close().unwrap();
    drop(old);
    assert_sound(disk.open(0), &options(), "it has grown");
}

/// A former owner that is just growing the file must not cut off what the new owner has in it by now.
#[test]
fn growing_a_file_never_makes_it_shorter() {
    use vmio::backing::{Access, Backing, FileBacking};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let old = FileBacking::create(&path, MIB).unwrap();
    let new = FileBacking::open(&path, Access::ReadWrite).unwrap();
    new.set_len(4 * MIB).unwrap();
    old.set_len(2 * MIB).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 * MIB);
}

/// An opening, with or without takeover, is stopped at one of its writes after the other (`VMIO_TEST_STEP=1` takes each); another owner
/// takes the store over. Only that owner owns the store, and has all that it puts.
#[test]
fn an_opening_that_is_stopped_is_no_second_owner() {
    let step = test_depth::step(11, 5) as usize;
    for takes_over in [false, true] {
        let mut stopped = 0;
        for stop_after in (0..).step_by(step) {
            let when = format!("stopped after {stop_after}, taking over: {takes_over}");
            let disk = SimulatedDisk::new(stop_after, &[64 * MIB]);
            let db = Db::create_on(disk.open(0), options()).unwrap();
            let second = db.create_segment().unwrap().keyspace_or_create(SECOND).unwrap();
            for number in 0..20_u64 {
                db.put(&number.to_be_bytes(), &[1; 1000]).unwrap();
                second.put(&number.to_be_bytes(), &[1; 1000]).unwrap();
            }
            db.sync().unwrap();
            drop((second, db));
            let gate = Gate::default();
            let is_over = AtomicBool::new(false);
            gate.stop_after(stop_after);
            let is_done = std::thread::scope(|scope| {
                let opening = scope.spawn(|| {
                    let gated = Gated { backing: disk.open(0), gate: gate.clone() };
                    let opened = Db::open_on(gated, options().take_over(takes_over));
                    is_over.store(true, Ordering::SeqCst);
                    opened
                });
                if !gate.wait_until_stopped(|| is_over.load(Ordering::SeqCst)) {
                    gate.open();
                    drop(opening.join().unwrap());
                    return true;
                }
                let new = Db::open_on(disk.open(0), options().take_over(true)).unwrap();
                let second = new.keyspace(SECOND).unwrap();
                new.put_with(b"before", b"1", Durability::Sync).unwrap();
                gate.open();
                let late = opening.join().unwrap();
                for number in 0..40_u64 {
                    new.put(&number.to_be_bytes(), &[2; 60_000]).unwrap();
                    second.put(&number.to_be_bytes(), &[2; 60_000]).unwrap();
                }
                new.flush().unwrap();
                match &late {
                    Ok(late) => {
                        assert!(is_fenced(&late.put_with(b"late", b"1", Durability::Sync).unwrap_err()), "{when}");
                        let second = late.keyspace(SECOND).unwrap();
                        assert!(is_fenced(&second.put_with(b"late", b"1", Durability::Sync).unwrap_err()), "{when}");
                    }
                    Err(error) => assert!(matches!(error, Error::Fenced { .. }), "{when}: {error}"),
                }
                new.put_with(b"after", b"1", Durability::Sync).unwrap();
                new.close().unwrap();
                false
            });
            if is_done {
                break;
            }
            stopped += 1;
            assert_sound(disk.open(0), &options(), &when);
            let db = Db::open_on(disk.open(0), options()).unwrap_or_else(|error| panic!("{when}: {error}"));
            for keyspace in [db.default_keyspace(), &db.keyspace(SECOND).unwrap()] {
                for number in 0..40_u64 {
                    assert_eq!(keyspace.get(&number.to_be_bytes()).unwrap().unwrap(), [2; 60_000], "{when}");
                }
            }
            assert!(db.get(b"before").unwrap().is_some() && db.get(b"after").unwrap().is_some(), "{when}");
            assert_eq!(db.get(b"late").unwrap(), None, "{when}");
        }
        // As many as there are, however few of them this run has tried.
        let writes = stopped * step;
        println!("stopped at {stopped} of some {writes} writes");
        assert!(writes > 10 && stopped > 1, "{writes}");
    }
}

/// Once one segment belongs to another owner, no other segment of the store acknowledges anything.
#[test]
fn an_owner_fenced_in_one_segment_checks_all() {
    let disk = SimulatedDisk::new(7, &[64 * MIB]);
    let old = Db::create_on(disk.open(0), options().fenced(false)).unwrap();
    let second = old.create_segment().unwrap().keyspace_or_create(SECOND).unwrap();
    let new = Db::open_on(disk.open(0), options().take_over(true)).unwrap();
    second.put_with(b"late", b"1", Durability::Sync).unwrap();
    assert!(is_fenced(&old.keyspace_or_create("late").unwrap_err()), "by the first segment's commit");
    assert!(is_fenced(&second.put_with(b"late", b"2", Durability::Sync).unwrap_err()));
    assert_eq!(new.keyspace(SECOND).unwrap().get(b"late").unwrap(), None);
}

/// An opening with too little memory for the store's segments or keyspaces fences no owner.
#[test]
fn a_store_that_cannot_be_opened_is_not_claimed() {
    let large = || options().memory_bytes(128 << 20).durability(Durability::Sync);
    let refused = |disk: &SimulatedDisk, old: &Db| {
        let error = Db::open_on(disk.open(0), options().memory_bytes(32 << 20).take_over(true)).unwrap_err();
        assert!(matches!(error, Error::Option { option: "memory_bytes", .. }), "{error}");
        old.put(b"not fenced", b"1").unwrap();
    };
    let disk = SimulatedDisk::new(8, &[64 * MIB]);
    let old = Db::create_on(disk.open(0), large()).unwrap();
    (0..2).for_each(|_| drop(old.create_segment().unwrap()));
    refused(&disk, &old);
    let disk = SimulatedDisk::new(9, &[64 * MIB]);
    let old = Db::create_on(disk.open(0), large()).unwrap();
    (0..256).for_each(|number| drop(old.keyspace_or_create(&format!("{number}")).unwrap()));
    refused(&disk, &old);
}

/// The takeover of the first segment leaves the space that the second one lacks, however little there is. Where it is too little, no owner
/// is fenced.
#[test]
fn takeover_finds_space_for_both_segments_or_fences_neither() {
    let disk = SimulatedDisk::new(5, &[40 * MIB]);
    let old = Db::create_on(disk.open(0), options().max_volume_bytes(128 * MIB)).unwrap();
    let second = old.create_segment().unwrap().keyspace_or_create(SECOND).unwrap();
    let keys = fill(&old, [old.default_keyspace(), &second]);
    let mut refused = 0;
    let new = loop {
        let most = disk.contents(0).len() as u64 + refused * 2 * MIB;
        match Db::open_on(disk.open(0), options().max_volume_bytes(most).take_over(true)) {
            Err(Error::Full { .. }) => {
                refused += 1;
                old.keyspace_or_create(&format!("it was not claimed in vain {refused}")).unwrap();
            }
            opened => break opened.unwrap(),
        }
    };
    assert!(refused > 10 && is_fenced(&old.keyspace_or_create("late").unwrap_err()), "refused {refused} times");
    assert_eq!(contents(&new).len() as u64, keys[0]);
    assert_eq!(new.keyspace(SECOND).unwrap().scan(..).keys().count() as u64, keys[1]);
    new.close().unwrap();
    drop((second, old));
    assert_sound(disk.open(0), &options(), "it has grown");
}
