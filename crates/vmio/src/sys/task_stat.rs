//! The kernel's view of a thread or process, in one line: /proc/PID/stat.

/// The fields behind the name, the state first. The name stands in brackets and may contain anything, brackets too.
/// `None` if this is no such line.
pub(crate) fn fields_behind_name(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(") ")?.1.split(' '))
}

/// The state: R, S, D, T, t, Z or X (proc(5)).
pub(crate) fn state(stat: &str) -> Option<char> {
    fields_behind_name(stat)?.next()?.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_fields() {
        assert_eq!(state("7 (a) R (b) S 1 2"), Some('S'));
        assert_eq!(fields_behind_name("7 (a) R (b) S 1 2").map(|fields| fields.collect()), Some(vec!["S", "1", "2"]));
        assert!(state("7 (a").is_none() && state("7 (a) ").is_none());
    }
}
