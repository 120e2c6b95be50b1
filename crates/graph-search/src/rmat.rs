//! R-MAT: random graphs with a few vertices of very many edges, as social networks have them.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;

use crate::graph::{Edge, Vertex};

/// How likely an edge goes from the upper half of the vertices to the upper half, from the upper to the lower, and from the
/// lower to the upper; the lower to the lower has what is left of 1.
const QUADRANTS: [f64; 3] = [0.57, 0.19, 0.19];

/// Edges that one random sequence makes: the graph is the same for any number of threads.
const PART_EDGES: usize = 1 << 16;

/// The graph to make.
#[derive(Clone, Copy, Debug)]
pub struct RmatShape {
    /// There are 2 to the power of this vertices, 31 at most.
    pub scale: u32,
    /// Directed edges, beside vertices.
    pub edges_per_vertex: u32,
    /// Where the random numbers begin.
    pub seed: u64,
}

impl RmatShape {
    /// How many vertices there are.
    pub fn vertices(&self) -> usize {
        1 << self.scale
    }

    /// The edges, in no order; some more than once, and some from a vertex to itself.
    pub fn edges(&self) -> Vec<Edge> {
        let mut edges = vec![(0, 0); self.vertices() * self.edges_per_vertex as usize];
        edges.par_chunks_mut(PART_EDGES).enumerate().for_each(|(part, edges)| {
            let mut random = SmallRng::seed_from_u64(self.seed.wrapping_shl(32) ^ part as u64);
            edges.fill_with(|| self.edge(&mut random));
        });
        edges
    }

    fn edge(&self, random: &mut SmallRng) -> Edge {
        let [upper_upper, upper_lower, lower_upper] = QUADRANTS;
        (0..self.scale).fold((0, 0), |(from, to): (Vertex, Vertex), _| {
            let drawn: f64 = random.random();
            let (from_lower, to_lower) = match drawn {
                _ if drawn < upper_upper => (0, 0),
                _ if drawn < upper_upper + upper_lower => (0, 1),
                _ if drawn < upper_upper + upper_lower + lower_upper => (1, 0),
                _ => (1, 1),
            };
            (from << 1 | from_lower, to << 1 | to_lower)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_the_same_every_time_and_gather_at_few_vertices() {
        let shape = RmatShape { scale: 12, edges_per_vertex: 16, seed: 7 };
        let edges = shape.edges();
        assert_eq!(edges, shape.edges());
        assert!(edges.iter().all(|&(from, to)| (from as usize) < shape.vertices() && (to as usize) < shape.vertices()));
        let upper = edges.iter().filter(|(from, _)| (*from as usize) < shape.vertices() / 2).count();
        let share = upper as f64 / edges.len() as f64;
        assert!((share - 0.76).abs() < 0.01, "{share} of all edges begin in the upper half");
    }
}
