//! A lane: the sequence of launches that model code appends to, its forks and its channels.

use std::cell::{RefCell, RefMut};
use std::marker::PhantomData;
use std::panic::Location;

use super::builder::Inner;
use super::graph::{Edge, EdgeKind, Lane as LaneInfo, LaneId, Node, NodeId};
use super::handles::{Brand, Handle};
use crate::ops::Op;

/// A sequence of launches. Lent, never owned by model code.
pub struct Lane<'s> {
    inner: &'s RefCell<Inner>,
    id: LaneId,
    frontier: Vec<NodeId>,
    _brand: Brand<'s>,
}

impl std::fmt::Debug for Lane<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("id", &self.id).field("frontier", &self.frontier).finish()
    }
}

impl<'s> Lane<'s> {
    pub(super) fn main(inner: &'s RefCell<Inner>) -> Self {
        Self { inner, id: LaneId(0), frontier: Vec::new(), _brand: PhantomData }
    }

    pub(super) fn inner(&self) -> RefMut<'s, Inner> {
        self.inner.borrow_mut()
    }

    /// Names the part of the model that is being built, for hazards and pictures.
    pub fn scope(&mut self, name: &str) {
        name.clone_into(&mut self.inner().scope);
    }

    /// Appends a launch after everything this lane has seen.
    pub(super) fn append(&mut self, op: Op) {
        let mut inner = self.inner();
        let to = NodeId(u32::try_from(inner.graph.nodes.len()).unwrap_or(u32::MAX));
        let edges = self.frontier.iter().map(|&from| Edge { from, to, kind: EdgeKind::Full });
        inner.graph.edges.extend(edges);
        let scope = inner.scope.clone();
        inner.graph.nodes.push(Node { op, lane: self.id, scope, waits: true });
        self.frontier = vec![to];
    }

    /// Starts named branches that all begin after this lane's present end and that it waits for.
    pub fn fork(&mut self) -> Fork<'_, 's, ()> {
        let base = self.frontier.clone();
        Fork { lane: self, base, merged: false, results: () }
    }

    /// Two branches, each with its own result.
    pub fn fork_join<A, B>(
        &mut self,
        (a_name, a): (&str, impl FnOnce(&mut Lane<'s>) -> A + Send),
        (b_name, b): (&str, impl FnOnce(&mut Lane<'s>) -> B + Send),
    ) -> (A, B) {
        self.fork().branch(a_name, a).branch(b_name, b).join()
    }

    /// A one-shot way for a value from one branch to a later sibling.
    #[must_use]
    pub fn channel<V: Handle<'s>>(&mut self) -> (Sender<'s, V>, Receiver<'s, V>) {
        let mut inner = self.inner();
        inner.parcels.push(None);
        let slot = inner.parcels.len() - 1;
        let marker = (PhantomData, PhantomData);
        (Sender { slot, _marker: marker }, Receiver { slot, _marker: marker })
    }

    /// Hands `value` on from this point of the lane; the sender goes on using it.
    pub fn send<V: Handle<'s>>(&mut self, to: Sender<'s, V>, value: &V) {
        let Sender { slot, .. } = to;
        self.inner().parcels[slot] = Some((value.pack(), self.frontier.clone()));
    }

    /// Receives, and orders everything that follows in this lane after the point of send.
    #[track_caller]
    pub fn recv<V: Handle<'s>>(&mut self, from: Receiver<'s, V>) -> V {
        let Receiver { slot, .. } = from;
        let parcel = self.inner().parcels[slot].take();
        let Some((parcel, frontier)) = parcel else {
            let message = "a channel is received from before it is sent to: move the sending branch first";
            self.inner().fail(Location::caller(), message.to_owned());
            return V::dummy();
        };
        self.wait_for(&frontier);
        V::unpack(parcel)
    }

    fn wait_for(&mut self, nodes: &[NodeId]) {
        let new = nodes.iter().copied().filter(|n| !self.frontier.contains(n)).collect::<Vec<_>>();
        self.frontier.extend(new);
    }

    fn child(&self, name: &str, base: &[NodeId]) -> Lane<'s> {
        let mut inner = self.inner();
        let name = format!("{}/{name}", inner.graph.lanes[self.id.0 as usize].name);
        let id = LaneId(u32::try_from(inner.graph.lanes.len()).unwrap_or(u32::MAX));
        inner.graph.lanes.push(LaneInfo { name, parent: Some(self.id) });
        Lane { inner: self.inner, id, frontier: base.to_vec(), _brand: PhantomData }
    }
}

/// Branches under way. Each is joined as it returns, so that forgetting [`Fork::join`] loses results, never order.
#[must_use = "the branches' results come from join()"]
pub struct Fork<'l, 's, R> {
    lane: &'l mut Lane<'s>,
    base: Vec<NodeId>,
    merged: bool,
    results: R,
}

impl<R: std::fmt::Debug> std::fmt::Debug for Fork<'_, '_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fork").field("base", &self.base).field("results", &self.results).finish()
    }
}

impl<'s, R> Fork<'_, 's, R> {
    fn run<Z>(&mut self, name: &str, f: impl FnOnce(&mut Lane<'s>) -> Z) -> Z {
        let mut child = self.lane.child(name, &self.base);
        let result = f(&mut child);
        if child.frontier != self.base {
            if !self.merged {
                self.lane.frontier.clear();
            }
            self.merged = true;
            self.lane.wait_for(&child.frontier);
        }
        result
    }

    /// What the branches returned, in order.
    pub fn join(self) -> R {
        self.results
    }
}

macro_rules! branch {
    ($($r:ident)*) => {
        impl<'l, 's, $($r),*> Fork<'l, 's, ($($r,)*)> {
            /// Runs one more branch.
            pub fn branch<Z>(
                mut self,
                name: &str,
                f: impl FnOnce(&mut Lane<'s>) -> Z + Send,
            ) -> Fork<'l, 's, ($($r,)* Z,)> {
                let z = self.run(name, f);
                let Fork { lane, base, merged, results } = self;
                #[allow(non_snake_case)]
                let ($($r,)*) = results;
                Fork { lane, base, merged, results: ($($r,)* z,) }
            }
        }
    };
}
branch!();
branch!(A);
branch!(A B);
branch!(A B C);
branch!(A B C D);

type Marker<'s, V> = (Brand<'s>, PhantomData<fn() -> V>);

/// The sending end; works once.
#[derive(Debug)]
pub struct Sender<'s, V: Handle<'s>> {
    slot: usize,
    _marker: Marker<'s, V>,
}

/// The receiving end; works once.
#[derive(Debug)]
pub struct Receiver<'s, V: Handle<'s>> {
    slot: usize,
    _marker: Marker<'s, V>,
}
