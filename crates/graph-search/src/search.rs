//! Breadth-first search, level by level, from the side that has less to do (Beamer's, as Ligra has it).

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

use crate::graph::{Graph, Vertex};

/// The level of a vertex that was not reached.
const UNREACHED: u32 = u32::MAX;
/// The search of a level with more than one edge in twenty begins at the vertices that have no level yet. Ligra's number.
const DENSE_PART: u64 = 20;

/// How far each vertex is from where a search began.
#[derive(Debug)]
pub struct Search {
    source: Vertex,
    levels: Vec<AtomicU32>,
}

/// A vertex whose level is not its distance.
#[derive(Debug, PartialEq, Eq)]
pub struct WrongLevel {
    /// Which.
    pub vertex: Vertex,
    /// The result of the search for a vertex; nothing if the search did not reach it.
    pub level: Option<u32>,
}

impl fmt::Display for WrongLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Some(level) => write!(f, "vertex {} is not at level {level}", self.vertex),
            None => write!(f, "vertex {} was not reached", self.vertex),
        }
    }
}

impl std::error::Error for WrongLevel {}

impl Search {
    /// Searches from a vertex, by the threads of the current rayon pool.
    pub fn run(graph: &Graph, source: Vertex) -> Self {
        let levels = (0..graph.vertices()).into_par_iter().map(|_| AtomicU32::new(UNREACHED)).collect();
        let search = Self { source, levels };
        search.levels[source as usize].store(0, Ordering::Relaxed);
        let mut frontier = vec![source];
        for level in 1.. {
            let edges: u64 = frontier.par_iter().map(|vertex| graph.outgoing.degree(*vertex)).sum();
            let is_dense = edges + frontier.len() as u64 > graph.edges() as u64 / DENSE_PART;
            frontier = if is_dense { search.pull(graph, level) } else { search.push(graph, &frontier, level) };
            if frontier.is_empty() {
                break;
            }
        }
        search
    }

    /// The neighbours of the frontier that are not reached yet.
    fn push(&self, graph: &Graph, frontier: &[Vertex], level: u32) -> Vec<Vertex> {
        let reach = |vertex: &Vertex| {
            let word = &self.levels[*vertex as usize];
            // A look first: most are reached already, and a failed exchange would make the page dirty.
            word.load(Ordering::Relaxed) == UNREACHED
                && word.compare_exchange(UNREACHED, level, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        frontier.par_iter().flat_map_iter(|vertex| graph.outgoing.of(*vertex).iter().copied().filter(reach)).collect()
    }

    /// The same, found by looking from each vertex that is not reached for a neighbour that was at the level before.
    fn pull(&self, graph: &Graph, level: u32) -> Vec<Vertex> {
        let reach = |vertex: &Vertex| {
            let word = &self.levels[*vertex as usize];
            let is_reached = word.load(Ordering::Relaxed) == UNREACHED
                && graph.incoming.of(*vertex).iter().any(|from| self.level(*from) == level - 1);
            if is_reached {
                word.store(level, Ordering::Relaxed);
            }
            is_reached
        };
        (0..graph.vertices() as Vertex).into_par_iter().filter(reach).collect()
    }

    fn level(&self, vertex: Vertex) -> u32 {
        self.levels[vertex as usize].load(Ordering::Relaxed)
    }

    /// Where it began.
    pub fn source(&self) -> Vertex {
        self.source
    }

    /// How many vertices it has reached.
    pub fn reached(&self) -> u64 {
        self.levels.par_iter().filter(|level| level.load(Ordering::Relaxed) != UNREACHED).count() as u64
    }

    /// How many levels they are at.
    pub fn levels(&self) -> u32 {
        let reached = self.levels.par_iter().map(|level| level.load(Ordering::Relaxed)).filter(|at| *at != UNREACHED);
        reached.max().map_or(0, |highest| highest + 1)
    }

    /// Checks every level. They are the distances if the beginning alone is at 0, no edge leads on by more than one level, and
    /// an edge from the level before leads to each other vertex that was reached.
    pub fn check(&self, graph: &Graph) -> Result<(), WrongLevel> {
        let is_right = |vertex: Vertex| {
            let level = self.level(vertex);
            let nearest = graph.incoming.of(vertex).iter().map(|from| self.level(*from)).min().unwrap_or(UNREACHED);
            match vertex == self.source {
                true => level == 0,
                // The next after an unreached neighbour is unreached.
                false => level == nearest.saturating_add(1),
            }
        };
        match (0..graph.vertices() as Vertex).into_par_iter().find_any(|vertex| !is_right(*vertex)) {
            None => Ok(()),
            Some(vertex) => {
                let level = Some(self.level(vertex)).filter(|level| *level != UNREACHED);
                Err(WrongLevel { vertex, level })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::RmatShape;

    #[test]
    fn levels_are_those_of_a_queue() {
        let shape = RmatShape { scale: 12, edges_per_vertex: 4, seed: 3 };
        let graph = Graph::from_edges(shape.vertices(), shape.edges());
        for source in graph.sources(4, 9) {
            let mut levels = vec![UNREACHED; graph.vertices()];
            levels[source as usize] = 0;
            let mut queue = VecDeque::from([source]);
            while let Some(vertex) = queue.pop_front() {
                for next in graph.outgoing.of(vertex) {
                    if levels[*next as usize] == UNREACHED {
                        levels[*next as usize] = levels[vertex as usize] + 1;
                        queue.push_back(*next);
                    }
                }
            }
            let search = Search::run(&graph, source);
            let found: Vec<_> = search.levels.iter().map(|level| level.load(Ordering::Relaxed)).collect();
            assert_eq!(found, levels);
            assert_eq!(search.check(&graph), Ok(()));
            assert_eq!(search.reached(), levels.iter().filter(|level| **level != UNREACHED).count() as u64);
        }
    }

    #[test]
    fn wrong_levels_are_found() {
        let graph = Graph::from_edges(4, vec![(0, 1), (1, 2), (0, 2)]);
        let search = Search::run(&graph, 0);
        assert_eq!((search.reached(), search.levels()), (3, 2));
        search.levels[2].store(2, Ordering::Relaxed);
        assert_eq!(search.check(&graph), Err(WrongLevel { vertex: 2, level: Some(2) }));
        search.levels[2].store(UNREACHED, Ordering::Relaxed);
        assert_eq!(search.check(&graph), Err(WrongLevel { vertex: 2, level: None }));
    }
}
