//! A map by agent.
//!
//! What is kept of each agent is looked up some twenty times for each push, and in a fleet of thousands a search tree would cost more than
//! all that is done with what it finds. The hub hands out numbers one after another, so an agent's place is nearly always its number's
//! distance from the first.

use omnilearn_wire::AgentId;

/// Values by agent, in the order of the agents' numbers. The place of an agent that is removed is kept for when it comes back, so memory
/// grows with the agents that ever were there, whatever their numbers are.
#[derive(Clone, Debug)]
pub(crate) struct AgentMap<T> {
    places: Vec<(AgentId, Option<T>)>,
    count: usize,
}

impl<T> Default for AgentMap<T> {
    fn default() -> AgentMap<T> {
        AgentMap { places: Vec::new(), count: 0 }
    }
}

impl<T> AgentMap<T> {
    /// Where the agent is, or would have to be put.
    fn place(&self, agent: AgentId) -> Result<usize, usize> {
        let first = self.places.first().map_or(0, |(first, _)| first.0);
        let guess = agent.0.wrapping_sub(first) as usize;
        match self.places.get(guess) {
            Some((found, _)) if *found == agent => Ok(guess),
            _ => self.places.binary_search_by_key(&agent, |(agent, _)| *agent),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn contains(&self, agent: AgentId) -> bool {
        self.get(agent).is_some()
    }

    pub(crate) fn get(&self, agent: AgentId) -> Option<&T> {
        self.places[self.place(agent).ok()?].1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, agent: AgentId) -> Option<&mut T> {
        let place = self.place(agent).ok()?;
        self.places[place].1.as_mut()
    }

    /// Puts a value in the agent's place, and returns what was there.
    pub(crate) fn insert(&mut self, agent: AgentId, value: T) -> Option<T> {
        let before = match self.place(agent) {
            Ok(place) => self.places[place].1.replace(value),
            Err(place) => {
                self.places.insert(place, (agent, Some(value)));
                None
            }
        };
        self.count += usize::from(before.is_none());
        before
    }

    pub(crate) fn get_or_insert_with(&mut self, agent: AgentId, value: impl FnOnce() -> T) -> &mut T {
        let place = self.place(agent).unwrap_or_else(|place| {
            self.places.insert(place, (agent, None));
            place
        });
        let value_there = &mut self.places[place].1;
        self.count += usize::from(value_there.is_none());
        value_there.get_or_insert_with(value)
    }

    pub(crate) fn remove(&mut self, agent: AgentId) -> Option<T> {
        let place = self.place(agent).ok()?;
        let removed = self.places[place].1.take();
        self.count -= usize::from(removed.is_some());
        removed
    }

    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(AgentId, &T) -> bool) {
        for (agent, value) in &mut self.places {
            self.count -= usize::from(value.take_if(|value| !keeps(*agent, value)).is_some());
        }
    }

    /// Takes all values out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (AgentId, T)> {
        let AgentMap { places, count } = self;
        places.iter_mut().filter_map(|(agent, value)| {
            let value = value.take()?;
            *count -= 1;
            Some((*agent, value))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (AgentId, &T)> + Clone {
        self.places.iter().filter_map(|(agent, value)| Some((*agent, value.as_ref()?)))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = AgentId> {
        self.iter().map(|(agent, _)| agent)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> + Clone {
        self.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|(_, value)| value.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Numbers as they are handed out, and such as only a strange database would have.
    fn agent() -> impl Strategy<Value = AgentId> {
        prop_oneof![(3u32..12).prop_map(AgentId), any::<u32>().prop_map(AgentId)]
    }

    proptest! {
        #[test]
        fn it_is_a_map_in_the_order_of_numbers(steps in prop::collection::vec((agent(), 0..4u8, any::<u8>()), 0..80)) {
            let (mut map, mut model) = (AgentMap::default(), BTreeMap::new());
            for (agent, step, value) in steps {
                match step {
                    0 => prop_assert_eq!(map.insert(agent, value), model.insert(agent, value)),
                    1 => prop_assert_eq!(map.remove(agent), model.remove(&agent)),
                    2 => prop_assert_eq!(
                        *map.get_or_insert_with(agent, || value),
                        *model.entry(agent).or_insert(value)
                    ),
                    _ => {
                        map.retain(|agent, kept| (agent.0 ^ u32::from(*kept ^ value)) % 2 == 0);
                        model.retain(|agent, kept| (agent.0 ^ u32::from(*kept ^ value)) % 2 == 0);
                    }
                }
                prop_assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!((map.get(agent), map.contains(agent)), (model.get(&agent), model.contains_key(&agent)));
                prop_assert!(map.iter().eq(model.iter().map(|(&agent, value)| (agent, value))));
            }
            prop_assert!(map.drain().eq(model));
            prop_assert!(map.is_empty() && map.keys().next().is_none());
        }
    }
}
