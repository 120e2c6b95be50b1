//! An unmodified Redis.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::programs::text;
use super::succeeded;

/// A Redis that acknowledges only logged writes, and listens at a socket of its folder.
pub struct Redis {
    server: Child,
    socket: String,
}

impl Redis {
    /// Starts a server by the command that `command` makes of the server's, and waits until it answers.
    pub fn start(folder: &Path, command: impl Fn(&[&str]) -> Command) -> Result<Self, Box<dyn Error>> {
        let socket = text(&folder.join("socket")).to_owned();
        let mut arguments = vec!["redis-server", "--port", "0", "--unixsocket", &socket, "--dir", text(folder)];
        arguments.extend(["--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        let server = command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let redis = Redis { server, socket };
        let end = Instant::now() + Duration::from_secs(60);
        while redis.client().arg("PING").output()?.stdout != b"PONG\n" {
            assert!(Instant::now() < end, "Redis does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(redis)
    }

    /// A client, without what it is to ask.
    pub fn client(&self) -> Command {
        let mut client = Command::new("redis-cli");
        client.args(["-s", &self.socket]);
        client
    }

    /// The server's process.
    pub fn process(&self) -> u32 {
        self.server.id()
    }

    /// Stores a value for one number after the other, and kills the server after `at_least` acknowledgements. Returns the acknowledgements
    /// by then.
    pub fn killed_while_it_stores(mut self, at_least: usize) -> Result<usize, Box<dyn Error>> {
        let mut client = self.client().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut commands = client.stdin.take().ok_or("no standard input")?;
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        // After the kill the client gets no further commands, and ends.
        let asking = std::thread::spawn(move || {
            (0..)
                .take_while(|_| !until.load(Ordering::Relaxed))
                .try_for_each(|number| writeln!(commands, "SET key:{number} {}", value(number)))
        });
        let mut answers = BufReader::new(client.stdout.take().ok_or("no standard output")?).lines();
        let mut acknowledged = 0;
        while acknowledged < at_least {
            assert_eq!(answers.next().ok_or("the server has ended")??, "OK");
            acknowledged += 1;
        }
        self.server.kill()?;
        self.server.wait()?;
        is_over.store(true, Ordering::Relaxed);
        acknowledged += answers.map_while(Result::ok).filter(|answer| answer == "OK").count();
        client.wait()?;
        // The client may end first.
        let _ = asking.join().map_err(|_| "the thread that asks has panicked")?;
        Ok(acknowledged)
    }

    /// The values of the first `count` numbers.
    pub fn values(&self, count: usize) -> Result<Vec<String>, Box<dyn Error>> {
        let keys = (0..count).map(|number| format!("key:{number}"));
        let said = succeeded(self.client().arg("MGET").args(keys))?;
        Ok(said.lines().map(str::to_owned).collect())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The text that [`Redis::killed_while_it_stores`] stores for a number.
pub fn value(number: usize) -> String {
    format!("{number:x}").repeat(1 + number % 40)
}
