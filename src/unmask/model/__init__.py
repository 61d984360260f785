"""The model: layouts, one encoder, what embeds into it, the heads on top, and the families that name them."""
