//! The hit ratio from which on a cache beats reading every page past it.

use crate::engines::EngineKind;
use crate::spec::RunResult;

/// The hit ratio `x` at which `x * hit + (1 - x) * miss = uncached`; `None` if there is none.
pub fn hit_ratio(hit_us: f64, miss_us: f64, uncached_us: f64) -> Option<f64> {
    if miss_us <= uncached_us {
        return Some(0.0);
    }
    (hit_us < uncached_us).then(|| (miss_us - uncached_us) / (miss_us - hit_us))
}

/// The sentence about a vmio run and the pread run of the same group.
pub fn sentence(cached: &RunResult, uncached: &RunResult) -> Option<String> {
    debug_assert!(cached.engine.is_vmio() && uncached.engine == EngineKind::Pread);
    let stats = cached.stats.as_ref()?;
    let miss_us = stats.miss_mean_us?;
    // Without a single hit, a hit counts as free beside a miss.
    let hit_us = stats.hit_mean_us.unwrap_or(0.0);
    let costs = format!(
        "hit {hit_us:.2} µs, miss {miss_us:.1} µs, pread {:.1} µs; this run hit {:.0} %",
        uncached.mean_us,
        stats.hit_ratio * 100.0
    );
    Some(match hit_ratio(hit_us, miss_us, uncached.mean_us) {
        Some(ratio) => {
            format!("a cache beats uncached pread above a hit ratio of {:.0} %  ({costs})", ratio * 100.0)
        }
        None => format!("no hit ratio beats uncached pread here  ({costs})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_balances_hits_and_misses() {
        assert_eq!(hit_ratio(0.0, 10.0, 5.0), Some(0.5));
        assert_eq!(hit_ratio(1.0, 4.0, 5.0), Some(0.0));
        assert_eq!(hit_ratio(6.0, 10.0, 5.0), None);
    }
}
