//! Lists whose length is checked before anything is made room for: a short frame can announce a long list of elements that
//! are larger in memory than on the wire.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// For `#[serde(with = "List::<MAX>")]`: a list of at most `MAX` elements, refused on both ends if it is longer.
pub(crate) struct List<const MAX: usize>;

impl<const MAX: usize> List<MAX> {
    pub(crate) fn serialize<T: Serialize, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        if list.len() > MAX {
            return Err(S::Error::custom(format_args!("list of {} elements, at most {MAX} allowed", list.len())));
        }
        serializer.collect_seq(list)
    }

    pub(crate) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        deserializer.deserialize_seq(Bounded::<MAX, T>(PhantomData))
    }
}

struct Bounded<const MAX: usize, T>(PhantomData<T>);

impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for Bounded<MAX, T> {
    type Value = Vec<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
        let announced = sequence.size_hint().unwrap_or(0);
        if announced > MAX {
            return Err(A::Error::invalid_length(announced, &self));
        }
        let mut list = Vec::with_capacity(announced);
        while let Some(element) = sequence.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::invalid_length(MAX + 1, &self));
            }
            list.push(element);
        }
        Ok(list)
    }
}
