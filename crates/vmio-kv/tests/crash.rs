//! The power fails while a store works. After the next opening the store holds all acknowledged durable writes, and of the later writes a
//! part without holes, batches whole. In some stores the second keyspace has its own segment: then this holds for each of the two.
//!
//! Each seed is a history; `VMIO_TEST_SEEDS=17..18` runs one again, `VMIO_TEST_SEEDS=0..5000` many.

use std::collections::BTreeMap;

use crate::support::simulated_disk::SimulatedDisk;
use crate::support::{Random, assert_sound};
use vmio_kv::{Db, Durability, Error, KeyspaceHandle, Options, WriteBatch};

const VOLUME_BYTES: u64 = 128 << 20;
const KEYS: u64 = 400;
/// Lives of a store; each ends with a power cut.
const LIVES: u64 = 4;

/// A value is one byte, repeated.
type Model = BTreeMap<(u8, Vec<u8>), (u8, usize)>;

/// The size of a second segment.
const SEGMENT_BYTES: u64 = 96 << 20;

/// Whether the second keyspace has its own segment, which is created in one of the lives.
fn has_two_segments(seed: u64) -> bool {
    seed % 3 == 1
}

/// Most stores have several compaction threads.
fn options(seed: u64) -> Options {
    let max_volume_bytes = VOLUME_BYTES + if has_two_segments(seed) { SEGMENT_BYTES } else { 0 };
    crate::support::options()
        .max_volume_bytes(max_volume_bytes)
        .compaction_threads(1 + seed as usize % 4)
        .memory_bytes(32 << 20)
        .memtable_bytes(6 << 10)
        .growth_factor(3)
        .durability(Durability::None)
        .max_space_amplification(1.1)
}

fn key(number: u64) -> Vec<u8> {
    match number % 6 {
        0 => format!("{number}").into_bytes(),
        1 => format!("a front that many keys share, longer than an entry's window {number:04}").into_bytes(),
        // The pivots between leaves of these keys are longer than a node has space for.
        _ => format!("{}{number:03}{}", "k".repeat(2000), "e".repeat(number as usize * 7)).into_bytes(),
    }
}

/// Keys that are there from the beginning and never change: with them trees have so many leaves that several threads merge parts of them.
fn lasting_keys() -> impl Iterator<Item = Vec<u8>> {
    (0..KEYS).filter(|number| number % 6 < 2).flat_map(|number| (0..9).map(move |more| lasting_key(number, more)))
}

fn lasting_key(number: u64, more: u64) -> Vec<u8> {
    [key(number), format!("{LASTING}{more}").into_bytes()].concat()
}

/// No other key has this prefix.
const LASTING: char = '+';

/// The contents of a store, by keyspace, without the keys that never change.
fn contents(db: &Db) -> Result<Model, Error> {
    let mut all = Model::new();
    for (index, name) in ["default", "other"].into_iter().enumerate() {
        let Ok(keyspace) = db.keyspace(name) else { continue };
        let mut lasting = lasting_keys().collect::<std::collections::BTreeSet<_>>();
        for found in keyspace.scan(..) {
            let (key, value) = found?;
            if key.contains(&(LASTING as u8)) {
                assert!(index == 0 && lasting.remove(&key) && value == key);
                continue;
            }
            let byte = value.first().copied().unwrap_or(0);
            assert!(value.iter().all(|other| *other == byte));
            all.insert((index as u8, key), (byte, value.len()));
        }
        assert!(index > 0 || lasting.is_empty(), "{} keys that never change are lost", lasting.len());
    }
    Ok(all)
}

/// A history: the states that the store went through, and for each keyspace the last one acknowledged as durable.
struct History {
    states: Vec<Model>,
    durable: [usize; 2],
}

impl History {
    fn of(state: Model) -> Self {
        History { states: vec![state], durable: [0; 2] }
    }

    /// All of it is durable now.
    fn make_durable(&mut self) {
        self.durable = [self.states.len() - 1; 2];
    }

    /// The newest of the allowed states that the store holds; for one keyspace alone, if that keyspace has its own log.
    fn place_of(&self, found: &Model, keyspace: Option<u8>) -> Option<usize> {
        let of_keyspace = |state: &Model| -> Model {
            let is_it = |key: &(u8, Vec<u8>)| keyspace.is_none_or(|keyspace| key.0 == keyspace);
            state.iter().filter(|(key, _)| is_it(key)).map(|(key, value)| (key.clone(), *value)).collect()
        };
        let durable =
            keyspace.map_or(self.durable[0].max(self.durable[1]), |keyspace| self.durable[usize::from(keyspace)]);
        let found = of_keyspace(found);
        let newer = self.states[durable..].iter().rposition(|state| of_keyspace(state) == found);
        newer.map(|place| self.states.len() - 1 - durable - place)
    }
}

/// The second keyspace. Until it exists, nothing of it was acknowledged.
fn other_keyspace(db: &Db, has_two_segments: bool) -> Result<KeyspaceHandle, Error> {
    if !has_two_segments {
        return db.keyspace_or_create("other");
    }
    match db.segment(1) {
        Ok(segment) => segment.keyspace_or_create("other"),
        Err(_) => db.create_segment()?.keyspace_or_create("other"),
    }
}

fn live(
    db: &Db,
    random: &mut Random,
    history: &mut History,
    has_two_segments: bool,
    seen: &mut Seen,
) -> Result<(), Error> {
    let mut other = other_keyspace(db, has_two_segments)?;
    for _ in 0..random.below(500) {
        let mut state = history.states.last().unwrap().clone();
        let mut batch = WriteBatch::new();
        let operations = if random.below(4) == 0 { 1 + random.below(30) } else { 1 };
        let mut is_other = random.below(3) == 0;
        let home = u8::from(is_other);
        for _ in 0..operations {
            let (keyspace, which) = if is_other { (&other, 1) } else { (db.default_keyspace(), 0) };
            is_other = if has_two_segments { is_other } else { random.below(3) == 0 };
            let key = key(random.below(KEYS));
            if random.below(4) == 0 {
                batch.delete(keyspace, &key)?;
                state.remove(&(which, key));
            } else {
                // Some values fill chunks.
                let most = if random.below(4) == 0 { 60_000 } else { 300 };
                let (byte, mut bytes) = (random.below(256) as u8, random.below(most) as usize);
                if random.below(150) == 0 {
                    // Some values are in extents.
                    bytes += 1 << 20;
                }
                batch.put(keyspace, &key, &vec![byte; bytes])?;
                state.insert((which, key), (if bytes == 0 { 0 } else { byte }, bytes));
            }
        }
        let durability = if random.below(8) == 0 { Durability::Sync } else { Durability::None };
        // A failed write may have been done all the same, unless space was lacking.
        history.states.push(state);
        match db.write_with(&batch, durability) {
            Err(Error::Full { .. }) => {
                history.states.pop();
                continue;
            }
            done => done?,
        }
        if durability == Durability::Sync {
            match has_two_segments {
                true => history.durable[usize::from(home)] = history.states.len() - 1,
                false => history.make_durable(),
            }
        }
        if random.below(60) == 0 {
            db.flush()?;
            history.make_durable();
        }
        if random.below(25) == 0 {
            db.collect_garbage()?;
        }
        if random.below(60) == 0 {
            // The other keyspace is cleared at once, and its log is durable then.
            let mut state = history.states.last().unwrap().clone();
            state.retain(|(which, _), _| *which == 0);
            history.states.push(state);
            if random.below(2) == 0 {
                other.clear()?;
            } else {
                db.drop_keyspace("other")?;
            }
            match has_two_segments {
                true => history.durable[1] = history.states.len() - 1,
                false => history.make_durable(),
            }
            seen.removals += 1;
            other = other_keyspace(db, has_two_segments)?;
        }
    }
    Ok(())
}

/// Counts of recovered records and of compactions: they show that the test tests something.
#[derive(Default)]
struct Seen {
    records: u64,
    entries: u64,
    states_lost: u64,
    chunks_collected: u64,
    bytes_moved: u64,
    large_values: u64,
    bytes_discarded: u64,
    with_two_segments: u64,
    removals: u64,
}

impl Seen {
    /// What was not seen.
    fn unseen(&self) -> Vec<&'static str> {
        let counts = [
            (self.records, "records"),
            (self.entries, "entries"),
            (self.states_lost, "lost states"),
            (self.chunks_collected, "collected chunks"),
            (self.bytes_moved, "moved bytes"),
            (self.large_values, "large values"),
            (self.bytes_discarded, "discarded bytes"),
            (self.with_two_segments, "stores of two segments"),
            (self.removals, "removed keyspaces"),
        ];
        counts.into_iter().filter(|(count, _)| *count == 0).map(|(_, name)| name).collect()
    }
}

fn run(seed: u64, seen: &mut Seen) {
    let mut random = Random(seed);
    let mut disk = SimulatedDisk::new(seed, &[VOLUME_BYTES]);
    let db = Db::create_on(disk.open(0), options(seed)).unwrap();
    lasting_keys().for_each(|key| db.put(&key, &key).unwrap());
    db.close().unwrap();
    let mut history = History::of(Model::new());
    for round in 0..LIVES {
        let most = [30, 300, 1500][random.below(3) as usize];
        disk.cut_power_after(random.below(most));
        match Db::open_on(disk.open(0), options(seed)) {
            Ok(db) => {
                let _ = live(&db, &mut random, &mut history, has_two_segments(seed), seen);
                let stats = db.stats().unwrap();
                seen.entries += stats.level_entries;
                seen.chunks_collected += stats.collected_chunks;
                seen.bytes_moved += stats.moved_bytes;
                if random.below(3) == 0 {
                    let is_closed = db.close().is_ok();
                    if is_closed {
                        history.make_durable();
                    }
                }
            }
            Err(error) => assert!(disk.has_lost_power(), "seed {seed}, life {round}: {error}"),
        }
        seen.bytes_discarded += disk.discarded_bytes();
        disk = disk.after_power_cut();
        let report = assert_sound(disk.open(0), &options(seed), &format!("seed {seed}, after life {round}"));
        seen.large_values += report.large_values;
        let db = match Db::open_on(disk.open(0), options(seed)) {
            Ok(db) => db,
            Err(error) => panic!("seed {seed}, after life {round}: {error}"),
        };
        seen.records += db.recovery().records;
        let found = contents(&db).unwrap_or_else(|error| panic!("seed {seed}, after life {round}: {error}"));
        seen.with_two_segments += u64::from(db.segments().unwrap().len() == 2);
        let logs: &[Option<u8>] = if has_two_segments(seed) { &[Some(0), Some(1)] } else { &[None] };
        for keyspace in logs {
            let Some(lost) = history.place_of(&found, *keyspace) else {
                panic!(
                    "seed {seed}, after life {round}: {} entries are no state of {keyspace:?} since the acknowledged one",
                    found.len()
                );
            };
            seen.states_lost += lost as u64;
        }
        let entries: Vec<_> = found.iter().step_by(7).collect();
        for ((which, key), value) in entries {
            let keyspace = db.keyspace(if *which == 0 { "default" } else { "other" }).unwrap();
            let (byte, bytes) = *value;
            assert_eq!(keyspace.get(key).unwrap(), Some(vec![byte; bytes]), "seed {seed}, after life {round}");
        }
        db.close().unwrap();
        assert_sound(disk.open(0), &options(seed), &format!("seed {seed}, closed after life {round}"));
        history = History::of(found);
    }
}

#[test]
fn acknowledged_writes_survive_power_cuts() {
    let mut seen = Seen::default();
    let seeds = test_depth::seeds(10, 40);
    for seed in seeds.clone() {
        run(seed, &mut seen);
    }
    if !test_depth::seeds_are_chosen() {
        // Where a cut falls depends on the threads as well: more seeds until all was seen.
        let mut further = seeds.end..50;
        while let Some(seed) = further.next().filter(|_| !seen.unseen().is_empty()) {
            run(seed, &mut seen);
        }
    }
    println!(
        "{} records read back, {} entries on the device, {} states lost, {} chunks collected, {} bytes moved, {} large values",
        seen.records, seen.entries, seen.states_lost, seen.chunks_collected, seen.bytes_moved, seen.large_values
    );
    if test_depth::seeds_are_chosen() {
        return;
    }
    assert!(seen.unseen().is_empty(), "never seen: {:?}", seen.unseen());
}

/// Blocks of a compaction belong to its own commit only: without that commit they are free after a crash.
#[test]
fn commits_during_a_compaction_leave_none_of_its_blocks_taken() {
    for seed in 0..test_depth::pick(5, 12) {
        let disk = SimulatedDisk::new(seed, &[VOLUME_BYTES]);
        let db = Db::create_on(disk.open(0), options(seed)).unwrap();
        disk.cut_power_after(200 + 60 * seed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    if db.put(&key(number * 7 % 3000), &[1; 100]).is_err() {
                        break;
                    }
                }
            });
            scope.spawn(|| (0..1000).find(|number| db.keyspace_or_create(&format!("keyspace {number}")).is_err()));
        });
        drop(db);
        let disk = disk.after_power_cut();
        assert_sound(disk.open(0), &options(seed), &format!("seed {seed}"));
        Db::open_on(disk.open(0), options(seed)).unwrap().close().unwrap();
        assert_sound(disk.open(0), &options(seed), &format!("seed {seed}, opened"));
    }
}

/// Writes that a failed flush has lost stay lost even if the next flush succeeds: no later write is acknowledged.
#[test]
fn nothing_is_acknowledged_after_a_flush_has_failed() {
    for seed in 0..test_depth::pick(6, 20) {
        let disk = SimulatedDisk::new(seed, &[VOLUME_BYTES]);
        let db = Db::create_on(disk.open(0), options(seed).durability(Durability::Sync)).unwrap();
        db.put(b"first", b"1").unwrap();
        disk.fail_flushes(1);
        db.put(b"second", &[2; 20_000]).unwrap_err();
        let third = db.put(b"third", b"3").is_ok();
        disk.cut_power_after(0);
        drop(db);
        let db = Db::open_on(disk.after_power_cut().open(0), options(seed)).unwrap();
        assert_eq!(db.get(b"first").unwrap().as_deref(), Some(&b"1"[..]), "seed {seed}");
        assert!(!third || db.get(b"third").unwrap().is_some(), "seed {seed}: it was acknowledged");
    }
}

/// Records that an opening has not found stay gone, even if the power fails again before anything is written.
#[test]
fn records_lost_in_a_power_cut_do_not_come_back_after_another() {
    let options = || crate::support::options().memory_bytes(32 << 20).durability(Durability::None);
    let keys = |db: &Db| db.scan(..).map(|pair| pair.unwrap().0).collect::<Vec<_>>();
    let mut lost = 0;
    for seed in 0..test_depth::pick(5, 12) {
        let disk = SimulatedDisk::new(seed, &[40 << 20]);
        let db = Db::create_on(disk.open(0), options()).unwrap();
        db.put(b"first", b"value").unwrap();
        db.close().unwrap();
        let db = Db::open_on(disk.open(0), options()).unwrap();
        (0..5).for_each(|number| db.put(format!("small {number}").as_bytes(), b"value").unwrap());
        (0..6).for_each(|number| db.put(format!("later {number}").as_bytes(), &[1; 60_000]).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(5));
        disk.cut_power_after(0);
        drop(db);
        for _ in 0..4 {
            let disk = disk.after_power_cut();
            let db = Db::open_on(disk.open(0), options()).unwrap();
            let found = keys(&db);
            disk.cut_power_after(0);
            drop(db);
            lost += usize::from(found.len() < 12);
            for _ in 0..4 {
                let again = Db::open_on(disk.after_power_cut().open(0), options()).unwrap();
                assert_eq!(keys(&again), found, "seed {seed}");
            }
        }
    }
    assert!(lost > 0, "no power cut has taken anything");
}
