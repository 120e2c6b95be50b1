//! Threads that write, retire and begin the log anew, all at once.

use std::fs::{self, File};
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::thread;

use operation_log::{Error, FileIdentity, Log, LogOptions, LogState, recover};

const THREADS: u64 = 4;
const WRITES: u64 = 60;
const BLOCK: usize = 700;

#[test]
fn what_each_thread_was_told_is_there() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("file");
    // Two files: `held` has all applied writes. Each sync copies them to `file`, which has the bytes that a power cut would leave.
    let file = File::create(&path)?;
    let log = Log::create(folder.path(), LogOptions::new().capacity_bytes(64 << 10))?;
    let number = log.file(FileIdentity::of(&file)?, &path)?;
    let held = File::create(folder.path().join("held"))?;
    let sync = || {
        // A sync makes durable all that was applied so far.
        let mut bytes = vec![0; held.metadata()?.len() as usize];
        held.sync_data()?;
        fs::File::open(folder.path().join("held"))?.read_exact_at(&mut bytes, 0)?;
        file.write_all_at(&bytes, 0)
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (log, held, sync) = (&log, &held, &sync);
            scope.spawn(move || {
                for index in 0..WRITES {
                    let data = vec![(thread * WRITES + index) as u8 | 1; BLOCK];
                    let offset = (thread + index * THREADS) * BLOCK as u64;
                    let unapplied = loop {
                        match log.write(number, offset, 0, &[IoSlice::new(&data)]) {
                            Ok(unapplied) => break unapplied,
                            Err(Error::Full { .. }) => log.checkpoint(|_| sync()).unwrap(),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    held.write_all_at(&data, offset).unwrap();
                    drop(unapplied);
                    if index % 16 == thread {
                        match log.retire(number, sync) {
                            Ok(()) | Err(Error::Full { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    drop(log);
    let recovery = recover(folder.path())?;
    assert!(recovery.logs.iter().all(|log| matches!(log.state, LogState::Recovered)), "{recovery:?}");
    let found = fs::read(&path)?;
    assert_eq!(found.len(), (THREADS * WRITES) as usize * BLOCK);
    for (index, block) in found.chunks(BLOCK).enumerate() {
        let (thread, index) = (index as u64 % THREADS, index as u64 / THREADS);
        let expected = (thread * WRITES + index) as u8 | 1;
        assert!(block.iter().all(|byte| *byte == expected), "write {index} of thread {thread}");
    }
    Ok(())
}
