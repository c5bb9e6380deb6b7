"""The exercises of each milestone, and the tool that hands them out, grades them and proves that they can be done.

README.md is for authors: what an exercise consists of, and how to check one.
"""
