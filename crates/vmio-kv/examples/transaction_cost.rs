//! The cost of a transaction that reads and writes one key, beside a plain get and put of the same key.
//!
//! `cargo run --release -p vmio-kv --example transaction_cost`. Both take turns in one run; it prints the median of the rounds' ratios.

use std::time::{Duration, Instant};

use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Options, Result};

const KEYS: u64 = 10_000;
const ROUNDS: usize = 31;
const EACH: u64 = 20_000;

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20).rem_euclid(KEYS).to_be_bytes()
}

fn timed(mut run: impl FnMut(u64) -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    (0..EACH).try_for_each(&mut run)?;
    Ok(began.elapsed())
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn measure(db: &Db, keyspaces: usize) -> Result<()> {
    let value = [7; 100];
    let (mut plain_ns, mut ratios, mut cas_ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let plain = timed(|number| {
            db.get(&key(number))?;
            db.put(&key(number), &value)
        })?;
        let transactions = timed(|number| {
            db.transact(|transaction| {
                transaction.get(db, &key(number))?;
                transaction.put(db, &key(number), &value)
            })
        })?;
        let compared = timed(|number| {
            assert!(db.compare_and_set(&key(number), Some(&value), Some(&value))?);
            Ok(())
        })?;
        plain_ns.push(plain.as_nanos() as f64 / EACH as f64);
        ratios.push(transactions.as_secs_f64() / plain.as_secs_f64());
        cas_ratios.push(compared.as_secs_f64() / plain.as_secs_f64());
    }
    println!(
        "{keyspaces} keyspaces: get and put {:.0} ns; transaction {:.2} times that, compare-and-set {:.2} times",
        median(plain_ns),
        median(ratios),
        median(cas_ratios)
    );
    Ok(())
}

fn main() -> Result<()> {
    let backing = MemoryBacking::new(512 << 20)?;
    let db = Db::create_on(backing, Options::new().memory_bytes(256 << 20).durability(Durability::None))?;
    (0..KEYS).try_for_each(|number| db.put(&number.to_be_bytes(), &[7; 100]))?;
    let mut keyspaces = 1;
    for wanted in [1, 10, 100] {
        for number in keyspaces..wanted {
            db.keyspace_or_create(&format!("{number}"))?;
        }
        keyspaces = wanted;
        measure(&db, keyspaces)?;
    }
    db.close()
}
