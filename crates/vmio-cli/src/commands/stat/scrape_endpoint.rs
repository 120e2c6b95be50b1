//! A web server with one page for Prometheus. It answers one request at a time, with a short timeout.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;
use vmio::telemetry::Reader;

use super::prometheus::{CONTENT_TYPE, exposition};
use super::sample::Sample;

/// How often the server accepts connections while the process runs.
const PATIENCE: Duration = Duration::from_millis(50);
/// The timeout of a request and of its answer.
const DEADLINE: Duration = Duration::from_secs(2);
const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

/// The answer to a request.
struct Answer {
    status: &'static str,
    body: String,
}

impl Answer {
    fn refusal(status: &'static str) -> Self {
        Self { status, body: format!("{status}\n") }
    }
}

/// Serves a process's caches at an address until the process ends.
pub fn serve(address: &str, reader: &Reader) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).with_context(|| {
        format!("cannot serve at {address}: give an address of this machine and a free port, as in 127.0.0.1:9464")
    })?;
    listener.set_nonblocking(true)?;
    eprintln!("serving http://{}/metrics until process {} ends", listener.local_addr()?, reader.process_id());
    while !reader.wait_for_end(PATIENCE)? {
        match listener.accept() {
            Ok((stream, peer)) => {
                if let Err(error) = answer(stream, reader) {
                    tracing::debug!(%peer, %error, "a scrape failed");
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => tracing::warn!(%error, "cannot accept a connection"),
        }
    }
    Ok(())
}

fn answer(mut stream: TcpStream, reader: &Reader) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let answer = match receive(&mut stream) {
        Ok(()) => metrics(reader),
        Err(Refusal::Lost(error)) => return Err(error),
        Err(Refusal::Status(status)) => Answer::refusal(status),
    };
    let (status, length) = (answer.status, answer.body.len());
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(answer.body.as_bytes())
}

fn metrics(reader: &Reader) -> Answer {
    match Sample::take(reader) {
        Ok(Some(sample)) => Answer { status: "200 OK", body: exposition(reader.process_id(), &sample.caches) },
        Ok(None) => Answer::refusal("503 Service Unavailable"),
        Err(error) => Answer { status: "500 Internal Server Error", body: format!("{error:#}\n") },
    }
}

/// The reason why a request gets no metrics.
enum Refusal {
    Status(&'static str),
    Lost(io::Error),
}

/// Reads a request for the metrics.
fn receive(stream: &mut TcpStream) -> Result<(), Refusal> {
    let began = Instant::now();
    let mut request = vec![0; REQUEST_BYTES_MAX];
    let mut received = 0;
    loop {
        let left = DEADLINE.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(Refusal::Status("408 Request Timeout"));
        }
        if received == request.len() {
            return Err(Refusal::Status("431 Request Header Fields Too Large"));
        }
        stream.set_read_timeout(Some(left)).map_err(Refusal::Lost)?;
        match stream.read(&mut request[received..]) {
            Ok(0) => return Err(Refusal::Lost(ErrorKind::UnexpectedEof.into())),
            Ok(bytes) => received += bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(Refusal::Lost(error)),
        }
        if let Some(checked) = check(&request[..received]) {
            return checked.map_err(Refusal::Status);
        }
    }
}

/// Whether a request is for the metrics; `None` if it is incomplete.
fn check(request: &[u8]) -> Option<Result<(), &'static str>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(Err("431 Request Header Fields Too Large")),
        Err(_) => return Some(Err("400 Bad Request")),
    }
    let path = parsed.path.unwrap_or_default().split('?').next();
    Some(match (parsed.method, path) {
        (Some("GET"), Some("/metrics")) => Ok(()),
        (Some("GET"), _) => Err("404 Not Found"),
        _ => Err("405 Method Not Allowed"),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn only_a_request_for_the_metrics_gets_them(begin in "(GET|POST)? ?/?(metrics)?", rest: Vec<u8>) {
            let request = [begin.as_bytes(), &rest, b"\r\n\r\n"].concat();
            if let Some(Ok(())) = check(&request) {
                prop_assert!(begin == "GET /metrics", "{begin:?} {rest:?}");
            }
        }

        #[test]
        fn a_request_that_came_in_part_is_waited_for(agent in "[ -~]{0,40}", cut_off: prop::sample::Index) {
            let request = format!("GET /metrics HTTP/1.1\r\nUser-Agent: {agent}\r\n\r\n");
            prop_assert_eq!(check(request.as_bytes()), Some(Ok(())));
            prop_assert_eq!(check(&request.as_bytes()[..cut_off.index(request.len())]), None);
        }
    }

    #[test]
    fn requests_are_told_apart() {
        for (request, outcome) in [
            ("GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n", Some(Ok(()))),
            ("GET /metrics?a=b HTTP/1.0\r\n\r\n", Some(Ok(()))),
            ("GET /metr", None),
            ("GET /metrics HTTP/1.1\r\nHost: here\r\n", None),
            ("GET / HTTP/1.1\r\n\r\n", Some(Err("404 Not Found"))),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some(Err("405 Method Not Allowed"))),
            ("\x16\x03\x01\x02", Some(Err("400 Bad Request"))),
        ] {
            assert_eq!(check(request.as_bytes()), outcome, "{request:?}");
        }
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(check(many.as_bytes()), Some(Err("431 Request Header Fields Too Large")));
    }
}
