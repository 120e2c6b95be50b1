//! Look-ups of several keys at once: one look at each node serves all keys that lead to it.

use crate::device::leaf_filters::LeafFilter;
use crate::error::Result;
use crate::format::block::Kind;
use crate::format::branch::Branch;
use crate::format::child::Child;
use crate::format::geometry::BLOCK_BYTES;
use crate::format::leaf::key_hash;
use crate::format::pointer::Pointer;
use crate::tree::Tree;

/// A leaf's answer for a key.
pub(crate) enum Answer {
    Absent,
    Found(Pointer),
    /// One of these records may have the key: the leaf has too few of its bytes.
    OneOf(Vec<Pointer>),
}

impl Answer {
    fn in_doubt(&self) -> &[Pointer] {
        match self {
            Answer::OneOf(records) => records,
            Answer::Absent | Answer::Found(_) => &[],
        }
    }
}

impl Tree<'_> {
    /// The newest records of several keys in the tree. Reads all records that it has to compare together.
    pub(crate) fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Pointer>>> {
        let answers = self.answers(keys)?;
        self.log.fetch(answers.iter().flat_map(Answer::in_doubt).copied());
        let found = answers.into_iter().zip(keys).map(|(answer, key)| match answer {
            Answer::Absent => Ok(None),
            Answer::Found(pointer) => Ok(Some(pointer)),
            Answer::OneOf(records) => records
                .into_iter()
                .find_map(|at| self.log.has_key(at, key).map(|has| has.then_some(at)).transpose())
                .transpose(),
        });
        found.collect()
    }

    /// The leaves' answers for several keys. Reads the nodes of each height together.
    pub(crate) fn answers(&self, keys: &[&[u8]]) -> Result<Vec<Answer>> {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        // Keys that are in order already cost one comparison each.
        order.sort_by_key(|place| keys[*place]);
        let in_order: Vec<&[u8]> = order.iter().map(|place| keys[*place]).collect();
        let mut nodes = vec![self.root_child(); keys.len()];
        for _ in 1..self.height()? {
            self.fetch(&nodes);
            nodes = self.of_each_node(&nodes, &in_order, |node, keys| self.children_of(node, keys))?;
        }
        // Keys that a filter excludes need no look.
        let is_to_be_looked_for = |at: &usize| self.leaf_to_look_at(nodes[*at], in_order[*at]).is_some();
        let looked_for: Vec<usize> = (0..keys.len()).filter(is_to_be_looked_for).collect();
        let leaves: Vec<Child> = looked_for.iter().map(|at| nodes[*at]).collect();
        let wanted: Vec<&[u8]> = looked_for.iter().map(|at| in_order[*at]).collect();
        self.fetch(&leaves);
        let said = self.of_each_node(&leaves, &wanted, |leaf, keys| self.answers_of(leaf, keys))?;
        let mut answers: Vec<Answer> = keys.iter().map(|_| Answer::Absent).collect();
        looked_for.into_iter().zip(said).for_each(|(at, answer)| answers[order[at]] = answer);
        Ok(answers)
    }

    /// The answers of `look` for each key. It is called once for each node; the keys of a node are neighbours.
    fn of_each_node<Said>(
        &self,
        nodes: &[Child],
        keys: &[&[u8]],
        look: impl Fn(Child, &[&[u8]]) -> Result<Vec<Said>>,
    ) -> Result<Vec<Said>> {
        let mut said = Vec::with_capacity(keys.len());
        for group in nodes.chunk_by(|one, other| one.offset() == other.offset()) {
            let keys = &keys[said.len()..][..group.len()];
            said.extend(look(group[0], keys)?);
            assert!(said.len() <= nodes.len());
        }
        assert_eq!(said.len(), keys.len());
        Ok(said)
    }

    fn children_of(&self, node: Child, keys: &[&[u8]]) -> Result<Vec<Child>> {
        self.look(Kind::Branch, node, |sealed| {
            let branch = Branch::to_search(sealed).map_err(self.damaged(Kind::Branch, node))?;
            keys.iter().map(|key| Ok(branch.child(self.find(&branch, node, key)?))).collect()
        })
    }

    fn answers_of(&self, place: Child, keys: &[&[u8]]) -> Result<Vec<Answer>> {
        let filters = self.log.device().leaf_filters();
        let (answers, filter) = self.leaf(place, |leaf| {
            let answer_of = |key: &&[u8]| {
                let hash = key_hash(key);
                let mut records = Vec::new();
                for index in leaf.candidates(key).filter(|index| !self.is_superseded(leaf, *index)) {
                    match leaf.is_key(index, key, hash) {
                        Some(true) => return Answer::Found(leaf.pointer(index).record()),
                        Some(false) => {}
                        None => records.push(leaf.pointer(index).record()),
                    }
                }
                if records.is_empty() { Answer::Absent } else { Answer::OneOf(records) }
            };
            let answers: Vec<Answer> = keys.iter().map(answer_of).collect();
            let lacks_any = answers.iter().any(|answer| matches!(answer, Answer::Absent));
            let hashes = (0..leaf.len()).map(|index| leaf.hash(index));
            Ok((answers, (lacks_any && filters.are_kept()).then(|| LeafFilter::new(hashes))))
        })?;
        // Only now: a look whose page cannot be read again is dropped.
        if let Some(filter) = filter {
            filters.learn(place.offset(), filter);
        }
        Ok(answers)
    }

    fn fetch(&self, nodes: &[Child]) {
        let mut offsets: Vec<u64> = nodes.iter().map(|node| node.offset()).collect();
        offsets.sort_unstable();
        offsets.dedup();
        self.log.device().fetch(offsets.into_iter().map(|offset| offset..offset + BLOCK_BYTES as u64));
    }
}
