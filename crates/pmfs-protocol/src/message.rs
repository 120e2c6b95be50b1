//! Messages on the connection between the server and a holder.

use std::io::{self, Read, Write};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The bytes of a message.
pub const MESSAGE_BYTES: usize = 16;

/// A message on the connection between the server and a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The server's first one: the holder's number.
    Hello {
        /// The number.
        holder: u64,
    },
    /// The server wants the blocks of a file back, from one on.
    Recall {
        /// The file.
        ino: u64,
        /// The first block.
        from_block: u32,
    },
    /// The holder has nothing of a file mapped any more from a block on.
    Returned {
        /// The file.
        ino: u64,
        /// The first block.
        from_block: u32,
    },
    /// The holder has nothing mapped any more. If its process lives on when the connection ends without this, it may still store to
    /// what it had.
    Left,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Layout {
    kind: u32,
    from_block: u32,
    number: u64,
}

const _: () = assert!(size_of::<Layout>() == MESSAGE_BYTES);

impl Message {
    /// Its bytes.
    pub fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let (kind, from_block, number) = match self {
            Message::Hello { holder } => (1, 0, holder),
            Message::Recall { ino, from_block } => (2, from_block, ino),
            Message::Returned { ino, from_block } => (3, from_block, ino),
            Message::Left => (4, 0, 0),
        };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes.copy_from_slice(Layout { kind, from_block, number }.as_bytes());
        bytes
    }

    /// Reads one; `None` for an unknown kind.
    pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Option<Message> {
        let Layout { kind, from_block, number } = Layout::read_from_bytes(bytes).ok()?;
        match kind {
            1 => Some(Message::Hello { holder: number }),
            2 => Some(Message::Recall { ino: number, from_block }),
            3 => Some(Message::Returned { ino: number, from_block }),
            4 => Some(Message::Left),
            _ => None,
        }
    }

    /// Sends it.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn send(self, mut to: impl Write) -> io::Result<()> {
        to.write_all(&self.to_bytes())
    }

    /// Waits for one.
    ///
    /// # Errors
    ///
    /// Those of the connection, its end, and an unknown kind.
    pub fn receive(mut from: impl Read) -> io::Result<Message> {
        let mut bytes = [0; MESSAGE_BYTES];
        from.read_exact(&mut bytes)?;
        Message::from_bytes(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_an_unknown_one_is_an_error() {
        let all = [
            Message::Hello { holder: u64::MAX },
            Message::Recall { ino: 3, from_block: 9 },
            Message::Returned { ino: 4, from_block: u32::MAX },
            Message::Left,
        ];
        let mut sent = Vec::new();
        all.iter().for_each(|message| message.send(&mut sent).unwrap());
        let mut left = &sent[..];
        assert_eq!(all.map(|_| Message::receive(&mut left).unwrap()), all);
        assert!(Message::receive(left).is_err());
        assert!(Message::receive(&[9; MESSAGE_BYTES][..]).is_err());
    }
}
