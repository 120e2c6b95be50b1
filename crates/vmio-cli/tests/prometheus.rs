//! `vmio stat --prometheus`, parsed as strictly as Prometheus's text format is specified.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use crate::common::cat::Cat;
use crate::common::{TestResult, refused, succeeded, vmio};

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses a text, and panics at anything that the format does not allow. Returns every sample by its name and labels.
fn checked(text: &str) -> HashMap<String, f64> {
    assert!(text.ends_with('\n') && !text.contains('\r'), "{text}");
    let (mut samples, mut families) = (HashMap::new(), HashSet::new());
    let mut lines = text.lines().peekable();
    while let Some(help) = lines.next() {
        let (name, words) = help.strip_prefix("# HELP ").and_then(|help| help.split_once(' ')).expect(help);
        assert!(is_name(name) && !words.is_empty() && !words.contains('\\'), "{help}");
        assert!(families.insert(name), "two families {name}");
        let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")[..])).expect(name);
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        // The last bucket of the present cache.
        let mut last: Option<(f64, f64)> = None;
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').expect(line);
            let value: f64 = value.parse().expect(line);
            assert!(value >= 0.0 && value.is_finite(), "{line}");
            let (metric, labels) = series.strip_suffix('}').and_then(|series| series.split_once('{')).expect(line);
            let mut names = Vec::new();
            let mut end = None;
            for label in labels.split(',') {
                let (label, text) = label.split_once("=\"").expect(line);
                let text = text.strip_suffix('"').expect(line);
                assert!(is_name(label) && !text.contains(['"', '\\']), "{line}");
                names.push(label);
                if label == "le" {
                    end = Some(text.parse::<f64>().expect(line));
                }
            }
            assert_eq!(names[..2], ["pid", "cache"], "{line}");
            match (kind, metric.strip_prefix(name)) {
                ("gauge", Some("")) if name.contains("_by_") => assert_eq!(names.len(), 3, "{line}"),
                ("gauge" | "counter", Some("")) => assert_eq!(names.len(), 2, "{line}"),
                ("histogram", Some("_bucket")) => {
                    let end = end.expect(line);
                    assert!(last.is_none_or(|(before, count)| before < end && count <= value), "{line} after {last:?}");
                    last = Some((end, value));
                }
                ("histogram", Some("_sum")) => {}
                ("histogram", Some("_count")) => assert_eq!(last.take(), Some((f64::INFINITY, value)), "{line}"),
                _ => panic!("{line} does not belong to the {kind} {name}"),
            }
            assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {series}");
        }
    }
    samples
}

#[test]
fn the_text_is_printed_for_a_collector_of_files() -> TestResult {
    let cat = Cat::start()?;
    let samples = checked(&succeeded(vmio().args(["stat", &cat.id(), "--prometheus", "-"]))?);
    let of = |name: &str| samples[&format!("vmio_{name}{{pid=\"{}\",cache=\"1\"}}", cat.id())];
    assert_eq!((of("mappings"), of("mapped_bytes")), (1.0, f64::from(24 << 20)));
    assert_eq!(of("capacity_bytes"), of("resident_bytes") + of("table_bytes") + of("free_bytes"));
    let of_default =
        format!("vmio_resident_by_priority_bytes{{pid=\"{}\",cache=\"1\",priority=\"128-159\"}}", cat.id());
    assert!(samples[&of_default] > 0.0 && samples[&of_default] <= of("resident_bytes"), "{samples:?}");
    assert!(of("read_bytes_total") >= f64::from(1 << 20), "{samples:?}");
    assert!((of("miss_latency_seconds_count") - of("load_misses_total")).abs() <= 2.0, "{samples:?}");
    assert!(of("miss_latency_seconds_sum") > 0.0 && of("start_time_seconds") > 1.7e9, "{samples:?}");
    Ok(())
}

/// A server's answer to a request: the status line and the body.
fn ask(address: &str, request: &[u8]) -> Result<(String, String), Box<dyn Error>> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(request)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no end of the head")?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).ok_or("no length")?;
    assert_eq!(length.parse::<usize>()?, body.len());
    Ok((head.lines().next().unwrap_or_default().to_owned(), body.to_owned()))
}

#[test]
fn the_text_is_served_until_the_process_ends() -> TestResult {
    let mut cat = Cat::start()?;
    let mut server = vmio().args(["stat", &cat.id(), "--prometheus", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn()?;
    let mut said = String::new();
    BufReader::new(server.stderr.take().ok_or("piped")?).read_line(&mut said)?;
    let address = said.split(['/', ' ']).find(|part| part.starts_with("127.0.0.1:")).ok_or(said.clone())?;

    // A client that says nothing and one that goes away do not block the server for good.
    let silent = TcpStream::connect(address)?;
    drop(TcpStream::connect(address)?);
    let (status, body) = ask(address, b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n")?;
    assert_eq!(status, "HTTP/1.1 200 OK");
    let samples = checked(&body);
    assert!(samples.keys().any(|series| series.starts_with("vmio_load_misses_total{")), "{body}");
    for (request, expected) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "404"),
        ("PUT /metrics HTTP/1.1\r\n\r\n".to_owned(), "405"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
        (format!("GET /metrics HTTP/1.1\r\nA: {}", "b".repeat((8 << 10) - 26)), "431"),
    ] {
        let (status, _) = ask(address, request.as_bytes())?;
        assert!(status.contains(expected), "{status} to {:.40}", request);
    }
    drop(silent);
    cat.child.kill()?;
    cat.child.wait()?;
    assert!(server.wait()?.success());
    Ok(())
}

#[test]
fn what_cannot_be_served_is_refused() -> TestResult {
    let cat = Cat::start()?;
    refused(vmio().args(["stat", &cat.id(), "--prometheus", "nowhere"]), "127.0.0.1:9464")?;
    refused(vmio().args(["stat", &cat.id(), "--prometheus", "-", "--json"]), "cannot be used with")?;
    Ok(())
}
