//! What is wrong with a sentence, beside its length. The rules are simple on purpose: they find what they name, and little else.

use super::sentences::CODE;

/// From how many passive verbs on a sentence has a chain of them.
const CHAIN: usize = 2;

/// What a sentence has that it should not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// "Who has not the option waits", "What is dirty is written", "an error for who calls".
    pub has_bare_subject: bool,
    /// "so many of each", where a number is meant.
    pub has_so_many: bool,
    /// Forms of "be" and "get" with a participle.
    pub passives: usize,
}

impl Faults {
    /// Those of a sentence without markup.
    pub fn of(sentence: &str) -> Faults {
        let words: Vec<String> = sentence.split_whitespace().map(str::to_lowercase).collect();
        Faults {
            has_bare_subject: has_bare_subject(sentence, &words),
            has_so_many: has_so_many(&words),
            passives: passives(&words),
        }
    }

    /// Whether there are so many passive verbs that who does what is lost.
    pub fn has_passive_chain(self) -> bool {
        self.passives >= CHAIN
    }
}

fn bare(word: &str) -> &str {
    word.trim_matches(|end: char| end.is_ascii_punctuation() || "“”‘’»«…–—".contains(end))
}

fn is_who_or_what(word: &str) -> bool {
    ["who", "what"].contains(&bare(word))
}

/// Of a clause that is no question.
fn has_bare_subject(sentence: &str, words: &[String]) -> bool {
    const BEFORE: &[&str] = &["as", "by", "for", "from", "of", "than", "to", "with"];
    let is_question = sentence.trim_end_matches([')', '"', '”']).ends_with('?');
    let begins = words.first().is_some_and(|first| is_who_or_what(first));
    let begins_a_clause = |pair: &[String]| pair[0].ends_with(';') && is_who_or_what(&pair[1]);
    let is_governed = |pair: &[String]| BEFORE.contains(&&*pair[0]) && bare(&pair[1]) == "who";
    !is_question && (begins || words.windows(2).any(|pair| begins_a_clause(pair) || is_governed(pair)))
}

/// "So many that" is English.
fn has_so_many(words: &[String]) -> bool {
    let is_so_many = |pair: &[String]| bare(&pair[0]) == "so" && bare(&pair[1]) == "many";
    words.windows(2).position(is_so_many).is_some_and(|at| !words[at..].iter().any(|word| bare(word) == "that"))
}

fn passives(words: &[String]) -> usize {
    const FORMS: &[&str] =
        &["am", "are", "be", "been", "being", "is", "was", "were", "get", "gets", "getting", "got", "aren't", "isn't"];
    const BETWEEN: &[&str] = &[
        "again", "all", "also", "always", "been", "being", "both", "each", "ever", "first", "never", "no", "longer",
        "not", "now", "often", "once", "only", "seldom", "still", "then", "thus",
    ];
    let may_stand_between = |word: &str| BETWEEN.contains(&word) || word.len() > 4 && word.ends_with("ly");
    let (mut count, mut at) = (0, 0);
    while at < words.len() {
        let is_form = FORMS.contains(&words[at].trim_start_matches(|first: char| first.is_ascii_punctuation()));
        at += 1;
        if is_form {
            while at < words.len() && may_stand_between(&words[at]) {
                at += 1;
            }
            count += usize::from(words.get(at).is_some_and(|word| is_participle(bare(word))));
        }
    }
    count
}

/// Whether a word behind a form of "be" makes a passive of it.
fn is_participle(word: &str) -> bool {
    const IRREGULAR: &str = "begun bound bought broken brought built caught chosen cut dealt done drawn driven eaten fed felt \
        forbidden forgotten fought found frozen given had heard held hidden hit hung kept known laid led \
        left lent lost made meant met overwritten paid proven put read reread rewritten run said seen sent \
        set shown shut sold spent split spoken spread spun stolen struck stuck sunk swept taken taught \
        thought thrown told torn understood undone withdrawn won worn written";
    // Adjectives and nouns of that ending.
    const NO_VERBS: &[&str] = &["advanced", "bed", "hundred", "indeed", "interested", "need", "red", "seed", "speed"];
    let is_regular = word.len() > 3 && word.ends_with("ed") && !NO_VERBS.contains(&word);
    !word.contains(CODE) && (is_regular || IRREGULAR.split(' ').any(|one| one == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare_subject(sentence: &str) -> bool {
        Faults::of(sentence).has_bare_subject
    }

    #[test]
    fn who_and_what_are_no_subjects() {
        assert!(bare_subject("Who has not the option waits."));
        assert!(bare_subject("What a mapping evicts is written."));
        assert!(bare_subject("\"What is dirty\" stays; what is clean goes."));
        assert!(bare_subject("Pages stay; what is clean goes."));
        assert!(bare_subject("It is an error for who calls."));
    }

    #[test]
    fn who_and_what_stand_elsewhere() {
        assert!(!bare_subject("Who calls it? (What is it?)"));
        assert!(!bare_subject("Whoever calls it waits for a thread, who or what it is."));
        assert!(!bare_subject("The error says what is missing, and for whom."));
        assert!(!bare_subject("Whatever is dirty stays."));
    }

    #[test]
    fn so_many_is_no_number() {
        assert!(Faults::of("Prints the longest, so many of each.").has_so_many);
        assert!(!Faults::of("There are so many pages that they are counted.").has_so_many);
        assert!(!Faults::of("It waits so long; many do.").has_so_many);
    }

    #[test]
    fn passive_verbs_are_counted() {
        let count = |sentence| Faults::of(sentence).passives;
        assert_eq!(count("The page is read and gets written, or has been only partly copied."), 3);
        assert_eq!(count("The cache reads a page that is clean, and is faster where pages are hot."), 0);
        assert_eq!(count("It is indeed a speed of a hundred, is ‹\u{FFFC}›, and there is need."), 0);
        assert_eq!(count("Nothing is no longer kept; this isn't done."), 2);
        assert!(Faults::of("It is read, and is written.").has_passive_chain());
        assert!(!Faults::of("It is read, and written.").has_passive_chain());
    }
}
