//! The page and word that the next operation touches.

use std::fmt;
use std::str::FromStr;

use rand::Rng;
use rand::distr::Distribution;
use rand::rngs::SmallRng;
use rand_distr::Zipf;
use serde::{Deserialize, Serialize};

use crate::content::{PAGE_BYTES, WORD_BYTES, WORDS_PER_PAGE};
use crate::scatter::Scatter;

/// The access pattern of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// Every page is as likely as any other.
    Uniform,
    /// Page popularity by Zipf's law with this exponent, popular pages scattered over the file.
    Zipf(f64),
    /// Page after page, each thread in its own part of the file.
    Sequential,
    /// Page after page within aligned blocks of this number of pages; each block is as likely as any other.
    Blocks(u32),
}

impl Pattern {
    /// Whether neighbouring operations touch unrelated pages.
    pub fn is_random(self) -> bool {
        self != Self::Sequential
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let advice = || format!("{text:?} is not a pattern: write uniform, zipf:0.99, seq or blocks:16");
        match text {
            "uniform" => Ok(Self::Uniform),
            "seq" => Ok(Self::Sequential),
            "zipf" => Ok(Self::Zipf(0.99)),
            _ if text.starts_with("blocks:") => match text["blocks:".len()..].parse() {
                Ok(pages @ 1..) => Ok(Self::Blocks(pages)),
                _ => Err(format!("{text:?} does not say how many pages a block has: write blocks:16")),
            },
            _ => {
                let theta = text.strip_prefix("zipf:").ok_or_else(advice)?;
                let theta: f64 = theta.parse().map_err(|_| advice())?;
                if theta.is_finite() && (0.0..=10.0).contains(&theta) {
                    Ok(Self::Zipf(theta))
                } else {
                    Err(format!("the Zipf exponent {theta} is not between 0 and 10"))
                }
            }
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(theta) => write!(f, "zipf:{theta}"),
            Self::Sequential => f.write_str("seq"),
            Self::Blocks(pages) => write!(f, "blocks:{pages}"),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.to_string()
    }
}

/// The endless stream of word offsets of one thread.
pub struct OffsetStream {
    pages: PageChooser,
}

enum PageChooser {
    Uniform { pages: u64 },
    Zipf { ranks: Zipf<f64>, scatter: Scatter },
    Sequential { first: u64, end: u64, next: u64 },
    Blocks { pages: u64, block: u64, next: u64 },
}

impl OffsetStream {
    /// The stream of thread `thread` of `threads` over a file of `pages` pages (at least one).
    pub fn new(pattern: Pattern, pages: u64, thread: u32, threads: u32) -> anyhow::Result<Self> {
        assert!(pages > 0 && thread < threads);
        let pages = match pattern {
            Pattern::Uniform => PageChooser::Uniform { pages },
            Pattern::Zipf(theta) => {
                PageChooser::Zipf { ranks: Zipf::new(pages as f64, theta)?, scatter: Scatter::new(pages) }
            }
            Pattern::Sequential => {
                let (thread, threads) = (u64::from(thread), u64::from(threads));
                let first = (pages * thread / threads).min(pages - 1);
                let end = (pages * (thread + 1) / threads).max(first + 1);
                PageChooser::Sequential { first, end, next: first }
            }
            Pattern::Blocks(block) => PageChooser::Blocks { pages, block: u64::from(block), next: 0 },
        };
        Ok(Self { pages })
    }

    /// The byte offset of the word to touch next.
    pub fn next_offset(&mut self, random: &mut SmallRng) -> u64 {
        let page = match &mut self.pages {
            PageChooser::Uniform { pages } => random.random_range(0..*pages),
            PageChooser::Zipf { ranks, scatter } => scatter.place_of(ranks.sample(random) as u64 - 1),
            PageChooser::Sequential { first, end, next } => {
                let page = *next;
                *next = if page + 1 == *end { *first } else { page + 1 };
                page
            }
            PageChooser::Blocks { pages, block, next } => {
                if next.is_multiple_of(*block) || *next == *pages {
                    *next = random.random_range(0..pages.div_ceil(*block)) * *block;
                }
                *next += 1;
                *next - 1
            }
        };
        page * PAGE_BYTES + random.random_range(0..WORDS_PER_PAGE) * WORD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn patterns_print_as_they_are_read() {
        for text in ["uniform", "zipf:0.99", "zipf:1.2", "seq", "blocks:16"] {
            assert_eq!(text.parse::<Pattern>().map(|pattern| pattern.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "zipf:", "zipf:-1", "zipf:nan", "random", "blocks:", "blocks:0"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn offsets_are_words_inside_the_file() -> anyhow::Result<()> {
        let mut random = SmallRng::seed_from_u64(1);
        for pattern in [Pattern::Uniform, Pattern::Zipf(0.99), Pattern::Sequential] {
            for pages in [1, 7, 100] {
                let mut stream = OffsetStream::new(pattern, pages, 1, 3)?;
                for _ in 0..1000 {
                    let offset = stream.next_offset(&mut random);
                    assert!(offset < pages * PAGE_BYTES && offset.is_multiple_of(WORD_BYTES));
                }
            }
        }
        Ok(())
    }

    #[test]
    fn sequential_threads_cover_the_file_once() -> anyhow::Result<()> {
        let mut random = SmallRng::seed_from_u64(1);
        let mut visits = [0; 10];
        for thread in 0..3 {
            let mut stream = OffsetStream::new(Pattern::Sequential, 10, thread, 3)?;
            for _ in 0..(10 * (thread + 1) / 3 - 10 * thread / 3) {
                visits[(stream.next_offset(&mut random) / PAGE_BYTES) as usize] += 1;
            }
        }
        assert_eq!(visits, [1; 10]);
        Ok(())
    }

    #[test]
    fn blocks_are_aligned_and_read_to_their_end() -> anyhow::Result<()> {
        let mut random = SmallRng::seed_from_u64(1);
        let mut stream = OffsetStream::new(Pattern::Blocks(4), 10, 0, 1)?;
        let mut pages = (0..400).map(|_| stream.next_offset(&mut random) / PAGE_BYTES);
        while let Some(first) = pages.next() {
            assert!(first.is_multiple_of(4) && first < 10);
            let rest = if first == 8 { 1 } else { 3 };
            (1..=rest).for_each(|step| assert!(pages.next().is_none_or(|page| page == first + step)));
        }
        Ok(())
    }

    #[test]
    fn zipf_prefers_few_pages() -> anyhow::Result<()> {
        let mut random = SmallRng::seed_from_u64(1);
        let mut stream = OffsetStream::new(Pattern::Zipf(0.99), 10_000, 0, 1)?;
        let mut visits = vec![0_u32; 10_000];
        for _ in 0..100_000 {
            visits[(stream.next_offset(&mut random) / PAGE_BYTES) as usize] += 1;
        }
        visits.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = visits[..100].iter().sum();
        assert!(top > 40_000, "the first percent of the pages got only {top} of 100000 visits");
        Ok(())
    }
}
