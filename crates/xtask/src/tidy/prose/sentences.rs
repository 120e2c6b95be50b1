//! Cuts Markdown into sentences. Code, headings and the targets of links are left out; a code span counts as one word.

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::faults::Faults;

/// Stands for a code span.
pub const CODE: char = '\u{FFFC}';

/// Their full stop never ends a sentence.
const ABBREVIATIONS: [&str; 9] = ["approx.", "cf.", "e.g.", "excl.", "i.e.", "incl.", "resp.", "vs.", "viz."];

/// Their full stop ends a sentence unless a digit or a small letter follows.
const OFTEN_LAST: [&str; 8] = ["al.", "etc.", "fig.", "max.", "min.", "no.", "p.", "sec."];

/// A cell of a table with fewer words of letters alone holds figures or names, not prose.
const CELL_WORDS_MIN: usize = 4;

/// A sentence of a text.
#[derive(Debug)]
pub struct Sentence {
    /// From 1.
    pub line: usize,
    /// As it is written, with single spaces.
    pub text: String,
    pub words: usize,
    /// Of a table: too short to say how long sentences are.
    pub is_of_table: bool,
    pub faults: Faults,
}

/// The sentences of a text in Markdown.
pub fn sentences(markdown: &str) -> Vec<Sentence> {
    let (mut found, mut block) = (Vec::new(), Block::default());
    let (mut is_code, mut is_heading, mut is_of_table) = (false, false, false);
    for (event, source) in Parser::new_ext(markdown, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Text(text) if !is_code => block.push(&text, source.start),
            Event::Code(_) => block.push(CODE.encode_utf8(&mut [0; 4]), source.start),
            Event::SoftBreak | Event::HardBreak => block.push(" ", source.start),
            Event::Start(Tag::Strong | Tag::Emphasis) => block.open_label(),
            Event::End(TagEnd::Strong | TagEnd::Emphasis) => block.close_label(),
            Event::Start(ref tag) if !is_inline(&tag.to_end()) => {
                block.end(markdown, is_heading, is_of_table, &mut found);
                match tag {
                    Tag::CodeBlock(_) => is_code = true,
                    Tag::Heading { .. } => is_heading = true,
                    Tag::Table(_) => is_of_table = true,
                    _ => {}
                }
            }
            Event::End(tag) if !is_inline(&tag) => {
                block.end(markdown, is_heading, is_of_table, &mut found);
                match tag {
                    TagEnd::CodeBlock => is_code = false,
                    TagEnd::Heading(_) => is_heading = false,
                    TagEnd::Table => is_of_table = false,
                    _ => {}
                }
            }
            _ => {}
        }
    }
    block.end(markdown, is_heading, is_of_table, &mut found);
    found
}

/// Whether it stands within a sentence.
fn is_inline(tag: &TagEnd) -> bool {
    matches!(tag, TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough | TagEnd::Link | TagEnd::Image)
}

/// A paragraph, an item of a list, or a cell.
#[derive(Default)]
struct Block {
    text: String,
    /// Places in the text, and where these stand in the source.
    pieces: Vec<(usize, usize)>,
    /// What is emphasised of the text.
    labels: Vec<Range<usize>>,
}

impl Block {
    fn push(&mut self, text: &str, source: usize) {
        self.pieces.push((self.text.len(), source));
        self.text += text;
    }

    fn open_label(&mut self) {
        self.labels.push(self.text.len()..usize::MAX);
    }

    fn close_label(&mut self) {
        if let Some(label) = self.labels.iter_mut().rev().find(|label| label.end == usize::MAX) {
            label.end = self.text.len();
        }
    }

    /// Whether it is nothing but emphasised, as a title is that stands before the text on its line.
    fn is_title(&self, range: &Range<usize>) -> bool {
        self.labels.iter().any(|label| label.start <= range.start && label.end >= range.end)
    }

    /// Whether such a title is set off by a colon.
    fn begins_with_title(&self, range: &Range<usize>) -> bool {
        let label = self.labels.iter().find(|label| label.start <= range.start && label.end > range.start);
        let rest = label.and_then(|label| self.text.get(label.end..));
        rest.is_some_and(|rest| rest.trim_start().starts_with([':', '(']))
    }

    /// Appends its sentences, and begins another.
    fn end(&mut self, markdown: &str, is_heading: bool, is_of_table: bool, found: &mut Vec<Sentence>) {
        let block = std::mem::take(self);
        let plain = |word: &&str| {
            let letters = word.trim_matches(|end: char| end.is_ascii_punctuation());
            !letters.is_empty() && letters.chars().all(char::is_alphabetic)
        };
        if is_heading || is_of_table && block.text.split_whitespace().filter(plain).count() < CELL_WORDS_MIN {
            return;
        }
        for range in cut(&block.text) {
            let form = &block.text[range.clone()];
            let is_word = |word: &&str| word.contains(|one: char| one == CODE || one.is_alphanumeric());
            let words = form.split_whitespace().filter(is_word).count();
            if words == 0 || block.is_title(&range) {
                continue;
            }
            let (start, end) = (block.source(range.start), block.source(range.end));
            let written = markdown.get(start..end).unwrap_or(form);
            let mut faults = Faults::of(form);
            // "What it does" over a column of a table is a title.
            faults.has_bare_subject &= !(is_of_table && !form.ends_with('.') || block.begins_with_title(&range));
            found.push(Sentence {
                line: 1 + markdown.bytes().take(start).filter(|byte| *byte == b'\n').count(),
                text: written.replace("**", "").split_whitespace().collect::<Vec<_>>().join(" "),
                words,
                is_of_table,
                faults,
            });
        }
    }

    /// Where a place of the text stands in the source.
    fn source(&self, place: usize) -> usize {
        let piece = self.pieces.partition_point(|(start, _)| *start <= place).saturating_sub(1);
        self.pieces.get(piece).map_or(0, |(start, source)| source + place - start)
    }
}

/// The sentences of a text without markup.
fn cut(text: &str) -> Vec<Range<usize>> {
    let (mut ranges, mut start) = (Vec::new(), 0);
    for (at, _) in text.match_indices(['.', '!', '?']) {
        let closed = text[at + 1..].trim_start_matches([')', ']', '"', '\'', '”', '’', '»']);
        let end = text.len() - closed.len();
        let is_end = closed.is_empty() || closed.starts_with(char::is_whitespace);
        if is_end && at >= start && !is_abbreviation(&text[start..=at], closed.trim_start()) {
            ranges.push(trimmed(text, start..end));
            start = end;
        }
    }
    ranges.push(trimmed(text, start..text.len()));
    ranges.retain(|range| !range.is_empty());
    ranges
}

/// Whether the sentence goes on behind its full stop.
fn is_abbreviation(sentence: &str, rest: &str) -> bool {
    let word = sentence.rsplit(char::is_whitespace).next().unwrap_or_default();
    let word = word.trim_start_matches(|first: char| first.is_ascii_punctuation()).to_ascii_lowercase();
    let goes_on = rest.starts_with(|next: char| next.is_lowercase() || next.is_ascii_digit());
    // The number of an item in a cell, and an ellipsis.
    let is_numeral = sentence.trim().trim_end_matches('.').chars().all(|one| one.is_ascii_digit());
    ABBREVIATIONS.contains(&&*word)
        || OFTEN_LAST.contains(&&*word) && goes_on
        || is_numeral
        || sentence.ends_with("..") && goes_on
}

fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let part = &text[range.clone()];
    range.start + part.len() - part.trim_start().len()..range.start + part.trim_end().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line, words and text of each.
    fn found(markdown: &str) -> Vec<(usize, usize, String)> {
        sentences(markdown).into_iter().map(|one| (one.line, one.words, one.text)).collect()
    }

    /// How many words each has.
    fn lengths(markdown: &str) -> Vec<usize> {
        sentences(markdown).iter().map(|one| one.words).collect()
    }

    #[test]
    fn a_paragraph_is_cut_at_full_stops() {
        let text = "# A heading. Of two\n\nThe first one\nends here. vmio has *no* [end](a.md#b.c). Has it? \"Yes.\"\n";
        let expected = [
            (3, 5, "The first one ends here."),
            (4, 4, "vmio has *no* [end](a.md#b.c)."),
            (4, 2, "Has it?"),
            (4, 1, "\"Yes.\""),
        ];
        assert_eq!(found(text), expected.map(|(line, words, text)| (line, words, text.to_owned())));
    }

    #[test]
    fn abbreviations_and_versions_end_nothing() {
        assert_eq!(lengths("An old kernel (e.g. Linux 6.1, i.e. Debian's) runs it."), [10]);
        assert_eq!(lengths("It needs Linux 6.18. Version 0.9.148 of nextest (cf. Fig. 3) does, too."), [4, 9]);
        assert_eq!(lengths("Pages, spans, etc. are listed. Pages, spans, etc. Then no more."), [5, 3, 3]);
        assert_eq!(lengths("It says no. Others say yes ... and wait."), [3, 5]);
        assert_eq!(lengths("The file docs/a.md is read by vmio.rs. At 3.5 GB/s."), [7, 3]);
    }

    #[test]
    fn code_is_one_word_or_none() {
        assert_eq!(lengths("Call `a.b(). C d e` twice.\n\n```\nA b c d. E f.\n```\n\n    A b c.\n"), [3]);
        assert_eq!(lengths("`a`s come. `b` goes."), [2, 2]);
    }

    #[test]
    fn each_item_of_a_list_is_for_itself() {
        let list = "It has these:\n- the first thing\n- the second thing, which\n  goes on\n  1. with an inner one\n\n- the last. One more\n";
        assert_eq!(lengths(list), [3, 3, 6, 4, 2, 2]);
    }

    #[test]
    fn titles_before_a_text_are_no_sentences() {
        let text =
            "**What.** It is read. *What it costs.* Nothing. **What it needs**: a file. **What is needed** is there.\n";
        let subjects = sentences(text).into_iter().filter(|one| one.faults.has_bare_subject).map(|one| one.text);
        assert_eq!(subjects.collect::<Vec<_>>(), ["What is needed is there."]);
        assert_eq!(lengths(text), [3, 1, 5, 5]);
    }

    #[test]
    fn cells_of_figures_are_no_prose() {
        let table = "| what is measured here | Linux | vmio |\n|---|--:|--:|\n| 4 KiB loads | 1.5 GiB/s (0.9–2.1) | 3 |\n\
            | 1. Loads that miss the cache | `a` b | - |\n";
        assert_eq!(
            found(table),
            [(1, 4, "what is measured here".to_owned()), (4, 6, "1. Loads that miss the cache".to_owned())]
        );
        assert!(sentences(table).iter().all(|sentence| sentence.is_of_table));
    }
}
