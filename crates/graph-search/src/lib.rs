//! Breadth-first search of a large random graph, in plain vectors and by several threads, like Ligra's.
//!
//! It knows nothing of vmio: it is the program that `vmio-bench heap` runs with a heap that is larger than memory.
//!
//! ```
//! use graph_search::{Graph, RmatShape, Search};
//!
//! let graph = Graph::from_edges(1 << 10, RmatShape { scale: 10, edges_per_vertex: 8, seed: 1 }.edges());
//! let search = Search::run(&graph, graph.sources(1, 1)[0]);
//! assert!(search.reached() > 1);
//! search.check(&graph).expect("every level is the shortest way");
//! ```

mod graph;
mod rmat;
mod search;

pub use graph::{Adjacency, Edge, Graph, Vertex};
pub use rmat::RmatShape;
pub use search::{Search, WrongLevel};
