"""The recurring pictures, one module and one function each.

`sweep.workers_sweep`, `strip.step_strip`, `waterfall.waterfall`, `prediction.predicted_and_measured`,
`memory_stack.memory_stack`, `batches.batch_sweep`, `ceiling.batch_ceiling`, `cure.cure`,
`map.two_axes` and `live.live_strip` return a `report.Figure`. They write their SVG by hand (`svg.Drawing`): it
is a few kilobytes, takes the ink of the page in light and dark, is the same byte for byte every time, and needs
no matplotlib.
`style.mplstyle` gives plain matplotlib plots the same look: `plt.style.use("gpuworkshop.figures.style")`.
"""
