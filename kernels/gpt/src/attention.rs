//! Attention of several heads (Vaswani et al. 2017), each token to itself and to those before.

use omnilearn_kernel_sdk::prelude::*;

use crate::block::Shape;

/// Added to the score of a token that lies ahead, so that its share, in `exp` of the score, is zero.
const AHEAD: f32 = -1e9;

/// `softmax(q k^T / sqrt(features) + mask) v` in each head, then a projection: `[batch, tokens, width]` to the same shape.
pub(crate) struct Attention {
    width: u32,
    heads: u32,
    /// Queries, keys and values of all heads, in this order.
    qkv: Linear,
    projection: Linear,
    dropout: Dropout,
}

impl Attention {
    pub(crate) fn new(build: &mut Builder, shape: &Shape) -> Attention {
        let Shape { width, heads, dropout, .. } = *shape;
        Attention {
            width,
            heads,
            qkv: shape.linear(width, 3 * width).build(build, "c_attn"),
            projection: shape.residual(width, width).build(build, "c_proj"),
            dropout: Dropout::new(dropout),
        }
    }

    pub(crate) fn forward(&self, x: &Tensor, mask: &Tensor, pass: &mut Pass) -> Tensor {
        let shape = x.shape();
        let features = self.width / self.heads;
        let qkv = self.qkv.forward(x, pass); // [batch, tokens, 3 width]
        let split = [shape[0], shape[1], self.heads, features];
        let part = |index: u32| qkv.narrow(2, index * self.width, self.width).reshape(&split);
        let query = part(0).permute(&[0, 2, 1, 3]); // [batch, heads, tokens, features]
        let query = query.mul_scalar(1.0 / (features as f32).sqrt()); // rather than the scores, of which there are more
        let key = part(1).permute(&[0, 2, 3, 1]); // [batch, heads, features, tokens]
        let value = part(2).permute(&[0, 2, 1, 3]);
        let scores = query.matmul(&key).add(mask);
        let shares = self.dropout.forward(scores.softmax(-1), pass); // [batch, heads, tokens, tokens]
        let y = shares.matmul(&value).permute(&[0, 2, 1, 3]).reshape(&shape);
        let y = self.projection.forward(&y, pass);
        self.dropout.forward(y, pass)
    }
}

/// `[tokens, tokens]`: [`AHEAD`] where the column's token comes after the row's, zero elsewhere.
pub(crate) fn causal_mask(tokens: u32) -> Tensor {
    // From two short lists: a list of all elements would be copied out of the kernel.
    let positions: Vec<f32> = (0..tokens).map(|position| position as f32).collect();
    let rows = Tensor::from_f32(&positions, &[tokens, 1]);
    let columns = Tensor::from_f32(&positions, &[1, tokens]);
    columns.sub(&rows).clamp(0.0, 1.0).mul_scalar(AHEAD)
}
