"""Model families: conversion of config.json to a `ModelSpec`, with one table row per family."""
