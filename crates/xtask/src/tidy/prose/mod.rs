//! Prose that users read: how long its sentences are, and how they are built.
//!
//! [`LIMITS`] says how much of each fault a kind of text may have.

mod faults;
mod rust_texts;
mod sentences;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use anyhow::Result;

use self::sentences::{Sentence, sentences};
use super::{Breach, Tree};

/// A sentence of more words is long, whatever its limit is.
const LONG_WORDS: usize = 40;

/// A file with fewer sentences has no average.
const AVERAGED_SENTENCES: usize = 10;

/// How many sentences are named of those that are over a limit together.
const NAMED_MAX: usize = 20;

/// Pages that a program writes have this in one of their first lines; their sentences are in that program.
const WRITTEN_BY_A_PROGRAM: &str = "Written by `make ";
const LINES_OF_HEAD: usize = 12;

/// A kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Markdown that somebody wrote.
    Page,
    /// Doc comments of what is public in crates that are published, and of their files.
    Rustdoc,
    /// Doc comments of all else there.
    Internal,
    /// What the commands of these print for `--help`.
    Help,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Page, Kind::Rustdoc, Kind::Internal, Kind::Help];

    fn name(self) -> &'static str {
        match self {
            Kind::Page => "pages",
            Kind::Rustdoc => "rustdoc",
            Kind::Internal => "doc comments of what is not public",
            Kind::Help => "--help",
        }
    }
}

/// What is counted of a kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    /// Words of the longest sentence.
    LongestSentence,
    /// Words of a sentence, on average, in the file where that is most; rounded up.
    LongestAverage,
    /// Sentences of more than [`LONG_WORDS`] words.
    LongSentences,
    /// Sentences where "who" or "what" is a subject, and nothing is asked.
    BareSubjects,
    /// "So many" in place of a number.
    SoMany,
    /// Sentences with two or more passive verbs.
    PassiveChains,
}

/// How much of it a kind of text may have.
struct Limit {
    kind: Kind,
    measure: Measure,
    at_most: usize,
}

const fn limit(kind: Kind, measure: Measure, at_most: usize) -> Limit {
    Limit { kind, measure, at_most }
}

#[rustfmt::skip]
const LIMITS: [Limit; 24] = [
    limit(Kind::Page,     Measure::LongestSentence, 40),
    limit(Kind::Page,     Measure::LongestAverage,  25),
    limit(Kind::Page,     Measure::LongSentences,   0),
    limit(Kind::Page,     Measure::BareSubjects,    0),
    limit(Kind::Page,     Measure::SoMany,          0),
    limit(Kind::Page,     Measure::PassiveChains,   10),
    limit(Kind::Rustdoc,  Measure::LongestSentence, 40),
    limit(Kind::Rustdoc,  Measure::LongestAverage,  25),
    limit(Kind::Rustdoc,  Measure::LongSentences,   0),
    limit(Kind::Rustdoc,  Measure::BareSubjects,    0),
    limit(Kind::Rustdoc,  Measure::SoMany,          0),
    limit(Kind::Rustdoc,  Measure::PassiveChains,   10),
    limit(Kind::Internal, Measure::LongestSentence, 40),
    limit(Kind::Internal, Measure::LongestAverage,  25),
    limit(Kind::Internal, Measure::LongSentences,   0),
    limit(Kind::Internal, Measure::BareSubjects,    0),
    limit(Kind::Internal, Measure::SoMany,          0),
    limit(Kind::Internal, Measure::PassiveChains,   10),
    limit(Kind::Help,     Measure::LongestSentence, 40),
    limit(Kind::Help,     Measure::LongestAverage,  25),
    limit(Kind::Help,     Measure::LongSentences,   0),
    limit(Kind::Help,     Measure::BareSubjects,    0),
    limit(Kind::Help,     Measure::SoMany,          0),
    limit(Kind::Help,     Measure::PassiveChains,   4),
];

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Measure::LongestSentence => "words of the longest sentence",
            Measure::LongestAverage => "words of a sentence, by the worst file",
            Measure::LongSentences => "sentences of more than 40 words",
            Measure::BareSubjects => "\"who\" or \"what\" as a subject",
            Measure::SoMany => "\"so many\" for a number",
            Measure::PassiveChains => "two passive verbs in a sentence",
        }
    }

    /// Whether a sentence is one of those that are counted.
    fn counts(self, sentence: &Sentence) -> bool {
        match self {
            Measure::LongestSentence | Measure::LongestAverage => false,
            Measure::LongSentences => sentence.words > LONG_WORDS,
            Measure::BareSubjects => sentence.faults.has_bare_subject,
            Measure::SoMany => sentence.faults.has_so_many,
            Measure::PassiveChains => sentence.faults.has_passive_chain(),
        }
    }
}

/// A sentence, and where it is from.
struct Found<'a> {
    kind: Kind,
    file: &'a str,
    sentence: Sentence,
}

impl Found<'_> {
    /// By how much it is the worse: a word too many counts one.
    fn badness(&self) -> usize {
        let faults = self.sentence.faults;
        self.sentence.words.saturating_sub(LONG_WORDS)
            + 10 * usize::from(faults.has_bare_subject)
            + 10 * usize::from(faults.has_so_many)
            + 5 * faults.passives.saturating_sub(1)
    }

    fn describe(&self) -> String {
        let Sentence { line, text, words, faults, .. } = &self.sentence;
        let mut what = vec![format!("{words} words")];
        if faults.has_bare_subject {
            what.push("who or what as a subject".to_owned());
        }
        if faults.has_so_many {
            what.push("so many".to_owned());
        }
        if faults.has_passive_chain() {
            what.push(format!("{} passive verbs", faults.passives));
        }
        let begin: String = text.chars().take(80).collect();
        let more = if text.chars().nth(80).is_some() { "…" } else { "" };
        format!("{}:{line}: {}: {begin}{more}", self.file, what.join(", "))
    }
}

/// The sentences of all that users read.
pub struct Prose<'a>(Vec<Found<'a>>);

impl<'a> Prose<'a> {
    pub fn read(tree: &'a Tree) -> Result<Prose<'a>> {
        let mut found = Vec::new();
        for (file, text) in tree.with_ending(".md").filter(|(_, text)| !is_written_by_a_program(text)) {
            found.extend(sentences(text).into_iter().map(|sentence| Found { kind: Kind::Page, file, sentence }));
        }
        for (file, parsed) in tree.rust()?.iter().filter(|(file, _)| is_published(tree, file)) {
            for rust_texts::RustText { kind, line, text } in rust_texts::rust_texts(parsed) {
                found.extend(sentences(&text).into_iter().map(|mut sentence| {
                    sentence.line += line - 1;
                    Found { kind, file, sentence }
                }));
            }
        }
        Ok(Prose(found))
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = &Found<'a>> {
        self.0.iter().filter(move |found| found.kind == kind)
    }

    /// How many words a sentence has on average, by file; what stands in tables is left out.
    fn averages(&self, kind: Kind) -> BTreeMap<&'a str, usize> {
        let mut sums: BTreeMap<_, (usize, usize)> = BTreeMap::new();
        for found in self.of(kind).filter(|found| !found.sentence.is_of_table) {
            let (words, count) = sums.entry(found.file).or_default();
            (*words, *count) = (*words + found.sentence.words, *count + 1);
        }
        sums.retain(|_, (_, count)| *count >= AVERAGED_SENTENCES);
        sums.into_iter().map(|(file, (words, count))| (file, words.div_ceil(count))).collect()
    }

    fn amount(&self, kind: Kind, measure: Measure) -> usize {
        match measure {
            Measure::LongestSentence => self.of(kind).map(|found| found.sentence.words).max().unwrap_or(0),
            Measure::LongestAverage => self.averages(kind).into_values().max().unwrap_or(0),
            _ => self.of(kind).filter(|found| measure.counts(&found.sentence)).count(),
        }
    }

    /// What is over a limit.
    pub fn check(&self) -> Vec<Breach> {
        LIMITS.iter().flat_map(|limit| self.over(limit)).collect()
    }

    fn over(&self, Limit { kind, measure, at_most }: &Limit) -> Vec<Breach> {
        let amount = self.amount(*kind, *measure);
        if amount <= *at_most {
            return Vec::new();
        }
        let too_many = format!("{}: {amount} in all, {at_most} are allowed", measure.name());
        let breach = |found: &Found<'_>, what: &str| {
            let begin: String = found.sentence.text.chars().take(60).collect();
            Breach::new(found.file, found.sentence.line, format!("{what}: {begin}"))
        };
        let longest = |found: &&Found<'_>| found.sentence.words > *at_most;
        let counted = |found: &&Found<'_>| measure.counts(&found.sentence);
        match measure {
            Measure::LongestSentence => {
                let words =
                    |found: &Found<'_>| format!("a sentence of {} words; {at_most} are allowed", found.sentence.words);
                self.of(*kind).filter(longest).map(|found| breach(found, &words(found))).collect()
            }
            Measure::LongestAverage => {
                let files = self.averages(*kind).into_iter().filter(|(_, average)| average > at_most);
                let what = |average| format!("sentences have {average} words on average; {at_most} are allowed");
                files.map(|(file, average)| Breach::new(file, 1, what(average))).collect()
            }
            _ => self.of(*kind).filter(counted).take(NAMED_MAX).map(|found| breach(found, &too_many)).collect(),
        }
    }

    /// Prints the worst sentences, at most `count`.
    pub fn list(&self, count: usize) {
        let mut worst: Vec<_> = self.0.iter().filter(|found| found.badness() > 0).collect();
        worst.sort_by_key(|found| Reverse(found.badness()));
        if count > 0 && !worst.is_empty() {
            println!("the worst sentences:");
        }
        worst.iter().take(count).for_each(|found| println!("  {}", found.describe()));
        let counts = Kind::ALL.map(|kind| format!("{} {}", self.of(kind).count(), kind.name()));
        println!("sentences of {}", counts.join(", "));
    }

    /// Prints all faults in files whose names begin so.
    pub fn list_in(&self, start: &str) {
        let files = self.0.iter().filter(|found| found.file.starts_with(start));
        files.filter(|found| found.badness() > 0).for_each(|found| println!("{}", found.describe()));
        for kind in Kind::ALL {
            let averages = self.averages(kind).into_iter().filter(|(file, _)| file.starts_with(start));
            for (file, average) in averages.filter(|(_, average)| *average > average_limit(kind)) {
                println!("{file}:1: {average} words a sentence on average");
            }
        }
    }
}

fn average_limit(kind: Kind) -> usize {
    let is_it = |limit: &&Limit| limit.kind == kind && limit.measure == Measure::LongestAverage;
    LIMITS.iter().find(is_it).map_or(usize::MAX, |limit| limit.at_most)
}

fn is_written_by_a_program(page: &str) -> bool {
    page.lines().take(LINES_OF_HEAD).any(|line| line.contains(WRITTEN_BY_A_PROGRAM))
}

/// Whether it is a source of a crate that users get, tests left out.
fn is_published(tree: &Tree, file: &str) -> bool {
    let Some((package, source)) = file.strip_prefix("crates/").and_then(|file| file.split_once("/src/")) else {
        return false;
    };
    let manifest = tree.text(&format!("crates/{package}/Cargo.toml"));
    let is_for_tests = source.split(['/', '.']).any(|part| part == "tests");
    !is_for_tests && manifest.is_some_and(|manifest| !manifest.contains("\npublish = false"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A sentence of so many words as `count`.
    fn sentence_of(count: usize) -> String {
        format!("{}end.\n", "word ".repeat(count - 1))
    }

    fn over(tree: &Tree, kind: Kind, measure: Measure, at_most: usize) -> Vec<String> {
        let breaches = Prose::read(tree).unwrap().over(&limit(kind, measure, at_most));
        breaches.iter().map(|breach| format!("{}:{}", breach.file, breach.line)).collect()
    }

    #[test]
    fn what_is_over_a_limit_is_named() {
        let pages = format!("One.\n\n{}\n{}\n", sentence_of(41), sentence_of(50));
        let tree = Tree::of(&[("a.md", &pages), ("b.md", &sentence_of(3))]);
        assert_eq!(over(&tree, Kind::Page, Measure::LongestSentence, 50), [""; 0]);
        assert_eq!(over(&tree, Kind::Page, Measure::LongestSentence, 41), ["a.md:5"]);
        assert_eq!(over(&tree, Kind::Page, Measure::LongSentences, 2), [""; 0]);
        assert_eq!(over(&tree, Kind::Page, Measure::LongSentences, 1), ["a.md:3", "a.md:5"]);
    }

    #[test]
    fn averages_are_of_files_with_several_sentences() {
        let (few, many) = (sentence_of(30).repeat(9), sentence_of(8).repeat(9) + &sentence_of(9));
        let tree = Tree::of(&[("a.md", &few), ("b.md", &many)]);
        assert_eq!(over(&tree, Kind::Page, Measure::LongestAverage, 9), [""; 0]);
        assert_eq!(over(&tree, Kind::Page, Measure::LongestAverage, 8), ["b.md:1"]);
    }

    #[test]
    fn pages_of_programs_and_crates_of_ours_are_left_out() {
        let manifest = |rest: &str| format!("[package]\nname = \"a\"\n{rest}");
        let (ours, users) = (manifest("publish = false\n"), manifest(""));
        let (code, page) = ("//! Who calls waits.\n", "# A page\n\nWritten by `make bench`.\n\nWho calls waits.\n");
        let tree = Tree::of(&[
            ("crates/a/Cargo.toml", &ours),
            ("crates/a/src/lib.rs", code),
            ("crates/b/Cargo.toml", &users),
            ("crates/b/src/lib.rs", code),
            ("crates/b/src/a/tests.rs", code),
            ("crates/b/tests/a.rs", code),
            ("docs/a.md", page),
            ("docs/b.md", "Who calls waits.\n"),
        ]);
        assert_eq!(over(&tree, Kind::Rustdoc, Measure::BareSubjects, 0), ["crates/b/src/lib.rs:1"]);
        assert_eq!(over(&tree, Kind::Page, Measure::BareSubjects, 0), ["docs/b.md:1"]);
    }

    #[test]
    fn each_measure_of_each_kind_has_one_limit() {
        for kind in Kind::ALL {
            for measure in [
                Measure::LongestSentence,
                Measure::LongestAverage,
                Measure::LongSentences,
                Measure::BareSubjects,
                Measure::SoMany,
                Measure::PassiveChains,
            ] {
                let rows: Vec<_> =
                    LIMITS.iter().filter(|limit| limit.kind == kind && limit.measure == measure).collect();
                assert_eq!(rows.len(), 1, "{kind:?}: {measure:?}");
            }
        }
    }
}
