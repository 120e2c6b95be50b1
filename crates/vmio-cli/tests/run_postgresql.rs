//! `vmio run --mode` under an unmodified PostgreSQL: many processes that share files, one of the hardest users of a file system.

use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::programs::{as_nobody, for_everybody, leave_out, text};
use crate::common::ring0::has_been_inside;
use crate::common::{TestResult, succeeded};
use rustix::process::{Pid, Signal, kill_process};

/// A database in a folder, with its socket.
pub struct Postgres<'a> {
    pub programs: PathBuf,
    pub folder: &'a Path,
    pub vmio: PathBuf,
    /// Those of `vmio run`; without it if there are none.
    pub options: &'a [&'a str],
}

impl Postgres<'_> {
    /// A program of PostgreSQL's, run as a user that is not root, as it requires.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.current_dir(self.folder).env("PGHOST", self.folder).env("PGUSER", "vmio").env("PGDATABASE", "postgres");
        as_nobody(&mut command, self.folder);
        command
    }

    /// Makes the database, with fsync `on` or `off`.
    pub fn create(&self, flushes: &str) -> TestResult {
        let options = "-D data -A trust -N -k --no-locale -U vmio";
        succeeded(self.program("initdb").args(options.split(' ')))?;
        let settings = self.folder.join("data/postgresql.conf");
        let more = format!(
            "listen_addresses = ''\nunix_socket_directories = '{}'\nshared_buffers = 2MB\nfsync = {flushes}\n",
            text(self.folder)
        );
        fs::write(&settings, fs::read_to_string(&settings)? + &more)?;
        Ok(())
    }

    /// Starts the server under vmio, and waits until it answers.
    pub fn start(&self) -> Result<Child, Box<dyn Error>> {
        let program = self.programs.join("postgres");
        let mut command = if self.options.is_empty() {
            Command::new(program)
        } else {
            let mut command = Command::new(&self.vmio);
            command.arg("run").args(self.options).args(["--stats", "--json", "--under"]);
            command.arg(self.folder.join("data")).arg("--").arg(program);
            command
        };
        command.args(["-D", "data"]);
        let said = File::options().create(true).append(true).open(self.folder.join("said"))?;
        command.current_dir(self.folder).env("VMIO_RUN_STORES_AFTER", "100000").stdout(Stdio::null()).stderr(said);
        let server = as_nobody(&mut command, self.folder).spawn()?;
        let end = Instant::now() + Duration::from_secs(120);
        while !self.program("pg_isready").arg("-q").status()?.success() {
            assert!(Instant::now() < end, "PostgreSQL does not answer: {}", self.said()?);
            sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Has the server end in order.
    pub fn stop(&self, mut server: Child) -> TestResult {
        let id = Pid::from_raw(server.id().try_into()?).ok_or("no process")?;
        kill_process(id, Signal::INT)?;
        assert!(server.wait()?.success(), "{:?}: {}", self.options, self.said()?);
        Ok(())
    }

    fn said(&self) -> std::io::Result<String> {
        fs::read_to_string(self.folder.join("said"))
    }

    pub fn ask(&self, question: &str) -> Result<String, Box<dyn Error>> {
        succeeded(self.program("psql").args(["-X", "-A", "-t", "-c", question]))
    }
}

/// The folder of the newest installed version's programs, which are not in PATH.
pub fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.flatten().map(|version| version.path().join("bin"));
    folders.filter(|folder| folder.join("pg_amcheck").exists()).max()
}

/// Kills the server and its children, each of which has a session of its own.
fn kill(mut server: Child) -> TestResult {
    // A process's state and its parent.
    let look = |process: &str| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let mut words = stat.rsplit(") ").next()?.split(' ').map(str::to_owned);
        Some((words.next()?, words.next()?))
    };
    let is_child = |process: &str| look(process).is_some_and(|(_, parent)| parent == server.id().to_string());
    let processes = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let children =
        processes.filter(|process| is_child(process)).filter_map(|process| Pid::from_raw(process.parse().ok()?));
    let children: Vec<Pid> = children.collect();
    assert!(children.len() >= 4, "PostgreSQL has a checkpointer, and others");
    server.kill()?;
    for child in &children {
        // The child may have noticed the end of its parent.
        let _ = kill_process(*child, Signal::KILL);
    }
    server.wait()?;
    // Their new parent may not reap them.
    let lives = |child: &Pid| look(&child.to_string()).is_some_and(|(state, _)| state != "Z");
    let end = Instant::now() + Duration::from_secs(60);
    while children.iter().any(lives) {
        assert!(Instant::now() < end, "a process of PostgreSQL's outlives its kill");
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn what_it_has_acknowledged_is_there_after_a_kill_and_sound() -> TestResult {
    let Some(programs) = programs() else { return leave_out("PostgreSQL is not installed") };
    for mode in ["posix", "sync", "strict"] {
        let (dir, place) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let vmio = for_everybody(place.path())?;
        let options = ["--mode", mode, "--log-size", "16M"];
        let postgres = Postgres { programs: programs.clone(), folder: dir.path(), vmio, options: &options };
        // If each call is durable, the server need not flush.
        postgres.create(if mode == "posix" { "on" } else { "off" })?;

        let server = postgres.start()?;
        succeeded(postgres.program("pgbench").args(["-i", "-q"]))?;
        succeeded(postgres.program("pgbench").args(["-c", "4", "-t", "100"]))?;
        let count = "SELECT count(*) FROM pgbench_history";
        assert_eq!(postgres.ask(count)?, "400\n");
        kill(server)?;
        // Another process may have its number by now.
        fs::remove_file(dir.path().join("data/postmaster.pid"))?;

        let server = postgres.start()?;
        assert_eq!(postgres.ask(count)?, "400\n", "{mode}");
        let sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)";
        assert_eq!(postgres.ask(sums)?, "t\n", "{mode}");
        succeeded(postgres.program("pg_amcheck").args(["--install-missing", "--heapallindexed"]))?;
        postgres.stop(server)?;
        succeeded(postgres.program("pg_checksums").args(["--check", "-D", "data"]))?;
        let said = postgres.said()?;
        let reports = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let served: u64 = reports.filter_map(|report| report["reads_served"].as_u64()).sum();
        assert!(served > 0, "{mode} has served nothing: {said}");
    }
    Ok(())
}

/// Its processes and their children in virtual machines of their own: it answers as it does without.
#[test]
fn in_guest_mode_it_answers_as_without() -> TestResult {
    let Some(programs) = programs() else { return leave_out("PostgreSQL is not installed") };
    let others_may = fs::metadata("/dev/kvm").is_ok_and(|device| device.mode() & 0o006 == 0o006);
    if !others_may {
        test_depth::skipped("it may not run as root, and other users may not open /dev/kvm");
        return Ok(());
    }
    let mut answers = Vec::new();
    for options in [&[][..], &["--engine", "ring0", "--cache", "16M"]] {
        let (dir, place) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let vmio = for_everybody(place.path())?;
        let postgres = Postgres { programs: programs.clone(), folder: dir.path(), vmio, options };
        postgres.create("on")?;
        let server = postgres.start()?;
        let work = "CREATE TABLE t AS SELECT n, md5(n::text) AS word FROM generate_series(1, 3000) n; CREATE INDEX ON t (word); \
                    DELETE FROM t WHERE n % 7 = 0; UPDATE t SET word = word || n WHERE n % 5 = 0; \
                    SELECT count(*), sum(n), md5(string_agg(word, '' ORDER BY n)) FROM t";
        answers.push(postgres.ask(work)?);
        assert_eq!(has_been_inside(server.id())?, !options.is_empty());
        postgres.stop(server)?;
    }
    assert_eq!(answers[0], answers[1]);
    Ok(())
}
