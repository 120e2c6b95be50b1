//! A directed graph, as lists of neighbours in two vectors for each direction.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;

/// A vertex's number.
pub type Vertex = u32;
/// From one vertex to another.
pub type Edge = (Vertex, Vertex);

/// The neighbours of all vertices in one direction.
#[derive(Debug)]
pub struct Adjacency {
    /// Where each vertex's neighbours begin, and at last where all end.
    starts: Vec<u64>,
    neighbours: Vec<Vertex>,
}

impl Adjacency {
    /// Those of edges that are in order.
    fn of_sorted(vertices: usize, edges: &[Edge]) -> Self {
        let mut starts = Vec::with_capacity(vertices + 1);
        for (at, (from, _)) in edges.iter().enumerate() {
            while starts.len() <= *from as usize {
                starts.push(at as u64);
            }
        }
        starts.resize(vertices + 1, edges.len() as u64);
        Self { starts, neighbours: edges.iter().map(|(_, to)| *to).collect() }
    }

    /// The neighbours of a vertex.
    pub fn of(&self, vertex: Vertex) -> &[Vertex] {
        let [start, end] = [0, 1].map(|next| self.starts[vertex as usize + next] as usize);
        &self.neighbours[start..end]
    }

    /// How many a vertex has.
    pub fn degree(&self, vertex: Vertex) -> u64 {
        self.starts[vertex as usize + 1] - self.starts[vertex as usize]
    }

    fn bytes(&self) -> u64 {
        (size_of_val(&*self.starts) + size_of_val(&*self.neighbours)) as u64
    }
}

/// A directed graph in both directions, as searches that turn round need it.
#[derive(Debug)]
pub struct Graph {
    /// Where the edges of a vertex go.
    pub outgoing: Adjacency,
    /// Where they come from.
    pub incoming: Adjacency,
}

impl Graph {
    /// Sorts the edges by their beginnings and by their ends: far less at random than counting and scattering them, which counts
    /// where they do not fit into memory.
    pub fn from_edges(vertices: usize, mut edges: Vec<Edge>) -> Self {
        edges.par_sort_unstable();
        let outgoing = Adjacency::of_sorted(vertices, &edges);
        edges.par_iter_mut().for_each(|edge| *edge = (edge.1, edge.0));
        edges.par_sort_unstable();
        Self { outgoing, incoming: Adjacency::of_sorted(vertices, &edges) }
    }

    /// How many vertices there are.
    pub fn vertices(&self) -> usize {
        self.outgoing.starts.len() - 1
    }

    /// How many edges there are.
    pub fn edges(&self) -> usize {
        self.outgoing.neighbours.len()
    }

    /// The length of all its vectors.
    pub fn bytes(&self) -> u64 {
        self.outgoing.bytes() + self.incoming.bytes()
    }

    /// Vertices at random from which edges go out; none if there are no edges.
    pub fn sources(&self, count: usize, seed: u64) -> Vec<Vertex> {
        let mut random = SmallRng::seed_from_u64(seed);
        let drawn = std::iter::repeat_with(|| random.random_range(0..self.vertices() as Vertex));
        let count = if self.edges() == 0 { 0 } else { count };
        drawn.filter(|vertex| self.outgoing.degree(*vertex) > 0).take(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_those_of_the_edges() {
        let graph = Graph::from_edges(5, vec![(3, 1), (0, 2), (3, 0), (0, 1)]);
        assert_eq!(
            [0, 1, 2, 3, 4].map(|vertex| graph.outgoing.of(vertex).to_vec()),
            [vec![1, 2], vec![], vec![], vec![0, 1], vec![]]
        );
        assert_eq!(graph.incoming.of(1), [0, 3]);
        assert_eq!((graph.incoming.degree(2), graph.incoming.degree(4)), (1, 0));
        assert_eq!((graph.vertices(), graph.edges()), (5, 4));
    }

    #[test]
    fn searches_begin_where_edges_do() {
        let graph = Graph::from_edges(4, vec![(2, 1)]);
        assert_eq!(graph.sources(3, 0), [2, 2, 2]);
        assert!(Graph::from_edges(4, Vec::new()).sources(3, 0).is_empty());
    }
}
